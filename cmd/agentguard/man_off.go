//go:build !agentguard_docs

package main

import "github.com/spf13/cobra"

func addMan(*cobra.Command) {}
