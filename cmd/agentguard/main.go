// Command agentguard runs a command nobody has read inside an envelope that the
// kernel enforces, and keeps the kernel's own record of what happened.
//
// This package is the command table: flags in, exit status out. What runs and
// in which order is in package supervisor.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/agentguard/agentguard/trace"
)

// version is set by the linker: -X main.version=...
var version = "devel"

// UI rules, for everything that this package prints:
//
//   - stdout belongs to the command that runs, or to the answer that was asked for;
//   - our own words go to stderr, one line each, begin with "agentguard: ", and
//     come only when no command is running;
//   - what came from a command is quoted (trace.Quote);
//   - machines read --json, never these lines.
//
// Elsewhere than on Linux there is nothing to run, and the commands that read
// copied records remain: see table_other.go.
func main() {
	startedByUs(os.Args) // by supervisor or the helper, not by people
	code := run(os.Args[1:])
	leave()
	os.Exit(code)
}

// status carries an exit status through cobra.
type status int

func (s status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

func run(args []string) int {
	if len(args) == 1 && args[0] == "--version" {
		// cobra's own line has more words, and for another it wants text/template. That
		// finds methods by name, so that the linker would have to keep every method there is.
		fmt.Println(version)
		return 0
	}
	root := newRoot(args...)
	addMan(root)
	if len(args) > 0 && strings.HasPrefix(args[0], "__complete") {
		addCompletions(root)
	}
	root.SetArgs(args)
	err := unknownOf(root, args)
	if err == nil {
		err = root.Execute()
	}
	var s status
	switch {
	case err == nil:
		return 0
	case errors.As(err, &s):
		return int(s)
	}
	say(err)
	return statusOf(err)
}

// unknownOf refuses what is no command of a group such as trace: cobra prints the
// group's help and ends with 0, which a script takes for an answer.
func unknownOf(root *cobra.Command, args []string) error {
	if len(args) > 1 && args[0] == "--" {
		return fmt.Errorf("no command stands before --; agentguard exec -- %s ... runs it", trace.Quote(args[1]))
	}
	if len(args) > 1 && args[0] == "help" {
		return unknownOf(root, args[1:])
	}
	c, rest, err := root.Find(args)
	if err != nil && c == root && len(args) > 0 {
		if args[0] == "help" || args[0] == "completion" || strings.HasPrefix(args[0], "__") {
			return nil // cobra adds these later
		}
		return unknownCommand(root, args[0]) // cobra's own words fill three lines
	}
	if err != nil || c == root || !c.HasSubCommands() || len(rest) == 0 || strings.HasPrefix(rest[0], "-") {
		return nil
	}
	return unknownCommand(c, rest[0])
}

// unknownCommand names what was probably meant.
func unknownCommand(c *cobra.Command, name string) error {
	return fmt.Errorf("unknown command %q for %q; %s", name, c.CommandPath(), meant(c, c, name, ""))
}

// flagError adds to cobra's words about a flag that there is not which one was
// probably meant.
func flagError(c *cobra.Command, err error) error {
	name, ok := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !ok {
		return fmt.Errorf("%w; see %s --help", err, c.CommandPath())
	}
	flags := &cobra.Command{} // cobra finds the nearest of commands only
	c.Flags().VisitAll(func(f *pflag.Flag) {
		flags.AddCommand(&cobra.Command{Use: f.Name, Hidden: f.Hidden, Run: func(*cobra.Command, []string) {}})
	})
	return fmt.Errorf("%w; %s", err, meant(c, flags, name, "--"))
}

// meant says which of the names is near, or where they all are.
func meant(c, of *cobra.Command, name, prefix string) string {
	of.SuggestionsMinimumDistance = 2
	near := of.SuggestionsFor(name)
	if len(near) == 0 {
		return c.CommandPath() + " --help lists those there are"
	}
	for i := range near {
		near[i] = prefix + near[i]
	}
	return "did you mean " + strings.Join(near, " or ") + "?"
}

// usageErrors adds to cobra's words about a number of arguments how the command
// is called.
func usageErrors(c *cobra.Command) {
	for _, sub := range c.Commands() {
		usageErrors(sub)
	}
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			err := check(c, args)
			if err != nil {
				err = fmt.Errorf("%w; it is called as %s", err, strings.TrimSuffix(c.UseLine(), " [flags]"))
			}
			return err
		}
	}
}

// tell prints one line of ours.
func tell(format string, a ...any) {
	fmt.Fprint(os.Stderr, "agentguard: ", plain(fmt.Sprintf(format, a...)), "\n")
}

// plain keeps a sentence what it is on a terminal: names that nobody has quoted, as in errors
// of package os, may be of a command's making. What does not print is escaped in its place.
func plain(s string) string {
	if trace.Line(s) == s {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if strconv.IsPrint(r) && (r != utf8.RuneError || n > 1) {
			b.WriteString(s[i : i+n])
		} else {
			for _, c := range []byte(s[i : i+n]) {
				fmt.Fprintf(&b, `\x%02x`, c)
			}
		}
		i += n
	}
	return b.String()
}

// jsonLine prints a value as one line of JSON that is safe on a terminal, whatever
// texts of a command's are in it.
func jsonLine(v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		_, err = os.Stdout.Write(append(trace.EscapeJSON(b), '\n'))
	}
	return err
}

// say prints every line of an error as a line of ours.
func say(err error) {
	for line := range strings.Lines(errorWords(err)) {
		fmt.Fprint(os.Stderr, "agentguard: ", plain(strings.TrimSuffix(line, "\n")), "\n")
	}
}

// errorWords is the text of an error with the path of one of package os on one line: what
// follows a line break in it would be printed as a line of ours.
func errorWords(err error) string {
	text := err.Error()
	if p := (*fs.PathError)(nil); errors.As(err, &p) && trace.Line(p.Path) != p.Path {
		text = strings.ReplaceAll(text, p.Path, trace.Quote(p.Path))
	}
	return text
}

// command is an entry of the table: a name and what makes it.
type command struct {
	name string
	make func() *cobra.Command
}

// only is the command that args begin with, or all there are: to make them all
// takes longer than many a command.
func only(args []string) []command {
	all := commands()
	for i, c := range all {
		if len(args) > 0 && c.name == args[0] {
			return all[i : i+1]
		}
	}
	return all
}

// newRoot makes the tree for these arguments: of one command, or of all.
func newRoot(args ...string) *cobra.Command {
	root := &cobra.Command{
		Use:   "agentguard",
		Short: "Run a command in an envelope that the kernel enforces, and keep the kernel's record of it",
		Long: `agentguard executes any command on a plain Linux host, starting from zero authority
and adding only what a policy grants, and keeps the kernel's own record of what
happened: what ran, what it was refused and by which rule, what it consumed.

Files:

  /etc/agentguard/policy.yaml     defaults for every run of this host
  /etc/agentguard/ceiling.yaml    what any policy may grant, to all but a root login
  /etc/agentguard/helper.yaml     the helper's own: who audits, labels, its log
  /etc/agentguard/seal.yaml       where seals are anchored
  ~/.config/agentguard/profiles/  profiles of your own
  /var/lib/agentguard/            records; users/UID/ below it for runs under sudo or by the helper
  ~/.local/state/agentguard/      records of runs without root and the helper
  /run/agentguard/                what is kept between runs

Exit status: that of exec is the command's own; else 0 done, 125 not, and stderr says why.`,
		Example: `  agentguard exec -- make test
  agentguard exec --mode rw -- sh -c 'go build ./... && go test ./...'
  agentguard trace show last`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
	}
	root.SetFlagErrorFunc(flagError)
	root.CompletionOptions.HiddenDefaultCmd = true
	for _, c := range only(args) {
		root.AddCommand(c.make())
	}
	setHelp(root)
	usageErrors(root)
	return root
}
