//go:build agentguard_docs

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
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
			err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Manual: "agentguard", Source: "agentguard " + version, Date: &date}, args[0])
			if err != nil {
				return err
			}
			return plainSwitches(args[0])
		},
	})
}

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
		if err := os.WriteFile(page, bytes.ReplaceAll(b, []byte("[=false]"), nil), 0o644); err != nil {
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
