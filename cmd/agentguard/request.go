//go:build linux

package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/agentguard/agentguard/internal/helper"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/supervisor"
)

// execRequest is what exec asks the helper for. On the wire it is
//
//	list 0    cwd, tty, run to continue, and "1" or "" for each of the switches
//	list 1    the command
//	list 2    the caller's environment
//	list 3... a policy source each: its name, "1" if it enumerates, and nine texts a statement
type execRequest struct {
	cwd, tty, cont string
	interactive    bool // default limits are those of an interactive run
	own            bool // stdin is a terminal that the client has made for the run
	json, calls    bool // what a dry run prints
	detach         bool // the run goes on without the client
	argv, environ  []string
	asked          []policy.Statements
}

const (
	headTexts      = 8
	statementTexts = 9
	maxStatements  = 20000 // of all sources: entries of most lists are compared one by one
)

func (q *execRequest) lists() [][]string {
	out := [][]string{
		{q.cwd, q.tty, q.cont, yes(q.interactive), yes(q.own), yes(q.json), yes(q.calls), yes(q.detach)},
		q.argv, q.environ,
	}
	for _, s := range q.asked {
		list := []string{s.Name, yes(s.Enumerates)}
		for _, t := range s.List {
			list = append(list, t.Key, t.Name, t.Text, t.Base, yes(t.Empty), t.Source.File, strconv.Itoa(t.Source.Line), strconv.Itoa(t.Source.Col), t.Source.Flag)
		}
		out = append(out, list)
	}
	return out
}

func yes(b bool) string {
	if b {
		return "1"
	}
	return ""
}

// readExec checks the form of a request: what the texts mean is checked where they
// are used.
func readExec(lists [][]string) (*execRequest, error) {
	if len(lists) < 3 || len(lists[0]) != headTexts {
		return nil, fmt.Errorf("%w: lists are missing", helper.ErrFrame)
	}
	for _, text := range slices.Concat(lists...) {
		if strings.ContainsRune(text, 0) {
			return nil, fmt.Errorf("%w: a text holds a zero byte", helper.ErrFrame)
		}
	}
	h := lists[0]
	q := &execRequest{
		cwd: h[0], tty: h[1], cont: h[2], interactive: h[3] != "", own: h[4] != "", json: h[5] != "", calls: h[6] != "", detach: h[7] != "",
		argv: lists[1], environ: lists[2],
	}
	if !filepath.IsAbs(q.cwd) || filepath.Clean(q.cwd) != q.cwd {
		return nil, &supervisor.Refusal{What: "the current directory is no clean absolute path"}
	}
	n := 0
	for _, list := range lists[3:] {
		s, err := readStatements(list)
		if err != nil {
			return nil, err
		}
		if n += len(s.List); n > maxStatements {
			return nil, &supervisor.Refusal{What: fmt.Sprintf("a policy of more than %d entries; the helper takes no more", maxStatements), Remedy: "name directories instead of files, domains (*.NAME) instead of hosts"}
		}
		q.asked = append(q.asked, s)
	}
	return q, nil
}

func readStatements(list []string) (policy.Statements, error) {
	if len(list) < 2 || (len(list)-2)%statementTexts != 0 {
		return policy.Statements{}, fmt.Errorf("%w: a policy that is cut", helper.ErrFrame)
	}
	s := policy.Statements{Name: list[0], Enumerates: list[1] != ""}
	for t := range slices.Chunk(list[2:], statementTexts) {
		line, lerr := strconv.Atoi(t[6])
		col, cerr := strconv.Atoi(t[7])
		if lerr != nil || cerr != nil {
			return s, fmt.Errorf("%w: a place that is no number", helper.ErrFrame)
		}
		s.List = append(s.List, policy.Statement{
			Key: t[0], Name: t[1], Text: t[2], Base: t[3], Empty: t[4] != "",
			Source: policy.Source{File: t[5], Line: line, Col: col, Flag: t[8]},
		})
	}
	return s, nil
}
