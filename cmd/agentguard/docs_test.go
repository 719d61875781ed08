//go:build linux

package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/internal/action"
	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/supervisor"
	"github.com/agentguard/agentguard/trace/seal"
)

func readDoc(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// eachCommand visits the commands that people run.
func eachCommand(c *cobra.Command, visit func(c *cobra.Command, name string)) {
	for _, sub := range c.Commands() {
		eachCommand(sub, visit)
	}
	if c.Runnable() && !c.Hidden && c.HasParent() {
		visit(c, strings.TrimPrefix(c.CommandPath(), "agentguard "))
	}
}

// noJSON are the commands whose output is no answer in lines, and why.
var noJSON = map[string]string{
	"attach":         "prints what the command wrote",
	"init":           "prints a policy",
	"policy suggest": "prints a policy",
	"policy schema":  "prints JSON",
	"trace prove":    "prints JSON",
	"trace export":   "prints JSON",
	"runs sweep":     "prints nothing",
	"helper":         "prints nothing",
}

// TestEveryCommandHasJSON holds the commands and docs/json.md together.
func TestEveryCommandHasJSON(t *testing.T) {
	doc := readDoc(t, "json.md")
	eachCommand(newRoot(), func(c *cobra.Command, name string) {
		if noJSON[name] != "" {
			if !strings.Contains(doc, "`"+name+"`") {
				t.Errorf("docs/json.md does not say what %s prints", name)
			}
			return
		}
		if c.Flags().Lookup("json") == nil {
			t.Errorf("%s has no --json", name)
		}
		if !strings.Contains(doc, "`"+name+" --json") {
			t.Errorf("docs/json.md has no row for %s --json", name)
		}
	})
}

// TestJSONFieldsAreDocumented wants every field of what is printed in the page
// that describes it.
func TestJSONFieldsAreDocumented(t *testing.T) {
	for _, c := range []struct {
		doc, from, to string // the part of the page between two headings
		v             any
	}{
		{"dispatch.md", "## What machines read", "", action.Outcome{}},
		{"json.md", "", "", listed{}},
		{"json.md", "", "", liveRun{}},
		{"json.md", "", "", doneRun{}},
		{"json.md", "", "", problem{}},
		{"json.md", "", "", conflictLine{}},
		{"json.md", "", "", supervisor.BuildInfo{}},
		{"json.md", "", "", supervisor.HostFacts{}},
		{"json.md", "## Verification", "## The plan", seal.Report{}},
		{"result.md", "## result.json", "", runs.Result{}},
		{"doctor.md", "## JSON", "", supervisor.Diagnosis{}},
	} {
		doc := readDoc(t, c.doc)
		if _, after, ok := strings.Cut(doc, c.from); ok {
			doc = after
		} else {
			t.Errorf("docs/%s has no %q", c.doc, c.from)
		}
		if c.to != "" {
			doc, _, _ = strings.Cut(doc, c.to)
		}
		for _, field := range jsonFields(reflect.TypeOf(c.v)) {
			if !regexp.MustCompile(`\b` + field + `\b`).MatchString(doc) {
				t.Errorf("docs/%s, %s: the field %s of %T is not described", c.doc, c.from, field, c.v)
			}
		}
	}
}

// jsonFields are the names of a struct's fields, and of those below; what has
// a page of its own is left out.
func jsonFields(t reflect.Type) (names []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[seal.Statement]() {
		return nil
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" || strings.HasSuffix(name, "_b64") {
			continue
		}
		names = append(append(names, name), jsonFields(f.Type)...)
	}
	return names
}
