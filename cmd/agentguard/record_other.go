//go:build !linux

package main

import (
	"errors"
	"os"
)

var errNoRuns = errors.New("runs are on Linux hosts; name a copied record as a file, with a slash in its name")

func openRunRecord(string, string) (*record, error) { return nil, errNoRuns }

func eachRun(string, func(*record, int) (bool, error)) error { return errNoRuns }

func openAsCaller(name string) (*os.File, error) { return os.Open(name) }

// hostPath asks nothing: this is not the host of the run.
func hostPath() func(string) string { return nil }
