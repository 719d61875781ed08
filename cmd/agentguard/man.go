//go:build agentguard_docs

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// addMan adds one more command to a build with the tag agentguard_docs, which writes
// the manual pages: `make share` runs it. It is not in the program, since it
// would bring a Markdown renderer with it.
func addMan(root *cobra.Command) {
	root.AddCommand(&cobra.Command{
		Use: "man DIR", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			date := time.Unix(0, 0).UTC() // the same commit gives the same pages
			if n, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
				date = time.Unix(n, 0).UTC()
			}
			root.DisableAutoGenTag = true
			keepLines(root)
			nameValues(root)
			err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Manual: "agentguard", Source: "agentguard " + version, Date: &date}, args[0])
			if err != nil {
				return err
			}
			return plainSwitches(args[0])
		},
	})
}

// nameValues puts what the value of a flag is called where cobra writes its
// default, and the default behind the text.
func nameValues(c *cobra.Command) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Value.Type() == "bool" {
			return
		}
		name, usage := pflag.UnquoteUsage(f)
		switch f.DefValue {
		case "", "[]", "0", "0s", "-1":
		default:
			usage += " (default " + f.DefValue + ")"
		}
		f.Usage, f.DefValue = usage, name
	})
	for _, sub := range c.Commands() {
		nameValues(sub)
	}
}

// quotedName is a value's name in the quotes that cobra puts around texts.
var quotedName = regexp.MustCompile(`(\\fB--[a-z-]+\\fP=)"([^"]*)"`)

// plainSwitches takes the default from switches, which cobra writes as --force[=false].
func plainSwitches(dir string) error {
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil {
		return err
	}
	for _, page := range pages {
		b, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		b = quotedName.ReplaceAll(bytes.ReplaceAll(b, []byte("[=false]"), nil), []byte("$1$2"))
		if err := os.WriteFile(page, b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// keepLines completes the help, and makes its indented lines what Markdown keeps
// as they are.
func keepLines(c *cobra.Command) {
	completeHelp(c)
	c.Long = strings.ReplaceAll(c.Long, "\n  ", "\n      ")
	for _, sub := range c.Commands() {
		keepLines(sub)
	}
}
