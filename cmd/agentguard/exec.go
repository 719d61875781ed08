//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/runs"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/supervisor"
)

// Files of the administrator's. Project files are read only when named with -p.
const (
	systemPolicy = "/etc/agentguard/policy.yaml"
	systemSeal   = "/etc/agentguard/seal.yaml"
)

// execFlags are the flags of exec. Policy flags are kept in the order in which
// they were given, one per policy key.
type execFlags struct {
	policies []string
	profiles []string
	flags    []policy.Flag
	state    string
	json     string
	dryRun   bool
	detach   bool // go on without this process

	withoutHelper bool
	quiet         bool
	verbose       bool
	tty           string   // when the command gets a terminal of its own
	cont          string   // the run to continue
	collect       []string // results that are committed whatever happens to the rest

	// Of --dispatch, which is a policy flag: the key is secrets.
	actions []string // files to look for the action in
	lines   string
	ready   *dispatching

	// What the policy is made of, besides the administrator's files.
	asked       []*policy.File
	cwd         string
	interactive bool // stdin and stdout are terminals
	mode        mode
}

// policyFlag collects the values of one policy flag.
type policyFlag struct {
	to   *execFlags
	name string
	kind string
}

func (f policyFlag) String() string { return "" }
func (f policyFlag) Type() string   { return f.kind }
func (f policyFlag) Set(v string) error {
	f.to.flags = append(f.to.flags, policy.Flag{Name: f.name, Value: v})
	return nil
}

// policyFlags are the flags that set policy keys: name, short name, what the
// value is called, help.
var policyFlags = []struct{ name, short, kind, help string }{
	{"ro", "", "PATH[:AT]", "show a host path, read-only"},
	{"rw", "", "PATH[:AT]", "show a host path, writable"},
	{"cow", "", "PATH", "show a host directory, changes staged"},
	{"workspace", "w", "DIR", "directory that the command starts in (default: the current one)"},
	{"mode", "", "MODE", "how the workspace is shown: cow, changes are staged (the default); rw, they are real; ro"},
	{"toolchains", "", "WHAT", "toolchains outside the system directories: auto, those of PATH (the default), none, or a directory; read-only, credentials masked"},
	{"cache", "", "NAME", "a cache of your home directory as a copy whose changes end with the run: auto, npm, pip, go-build, ..."},
	{"env", "", "NAME[=VALUE]", "pass a variable through, or set it"},
	{"allow", "", "HOST:PORT", "reach this destination: a name, *.NAME, an address or a range; udp:// may stand before"},
	{"resolve", "", "NAME=ADDR", "pin an allowed name to an address"},
	{"proxy", "", "WHICH", "lead allowed connections through the proxy of the environment: env (the default), or none"},
	{"unix", "", "PATH", "show exactly this unix socket of the host"},
	{"publish", "", "PORT", "lead 127.0.0.1:PORT of the host to that port inside"},
	{"broker", "", "NAME", "let the command call this API as http://NAME.broker.internal, with a credential of the host's that it never sees"},
	{"memory", "", "SIZE", "memory of the whole tree (default: half of RAM)"},
	{"cpu", "", "DUR", "cpu time of the whole tree (default 1h, none when interactive)"},
	{"wall", "", "DUR", "wall-clock time (default 1h, none when interactive)"},
	{"pids", "", "N", "tasks of the whole tree, threads too (default 512)"},
	{"output", "", "SIZE", "bytes in /tmp, /dev/shm and HOME (default 1G); when given, also what is written to real files"},
	{"file-size", "", "SIZE", "size of one file"},
	{"files", "", "N", "files in /tmp, /dev/shm and HOME together"},
	{"upper", "", "WHERE", "where the run's own storage lies: ram, disk, or auto (the default: disk where memory is short)"},
	{"stdout", "", "SIZE", "bytes of stdout and stderr that are kept; when given, also that are passed on"},
	{"user", "", "ID", "user id that the command runs as (default: the workspace's owner)"},
	{"commit", "", "WHEN", "what happens to staged changes: never (the default), ask (the default on a terminal) or success"},
	{"trace", "", "WHAT", "file events that are recorded: all (the default), or changes, without opens that only read"},
	{"on-loss", "", "WHAT", "what to do when records would be lost: record (count them), throttle or kill the run"},
	{"dispatch", "", "ACTION", "when the command ended with 0, dispatch its stdout, which is not shown, and print what came of it"},
	{"allow-gap", "", "CLAUSE", "accept that a clause cannot be enforced here; landlock: all that a run lacks where user namespaces are forbidden"},
}

func newExec() *cobra.Command {
	f := &execFlags{}
	c := &cobra.Command{
		Use:   "exec [flags] -- COMMAND [ARG...]",
		Short: "Run a command inside the envelope and record it",
		Long: `exec runs a command that starts with nothing: no variable, no descriptor, no file,
no network, no other process. It gets the system directories read-only, private
/tmp and HOME, the workspace as --mode says, and what the policy grants. What it changes
in a copy-on-write workspace is kept in the record; the files of the host stay as they
are until somebody commits it.

Exit status: the command's own; 128+N when signal N ended it; 124 wall-clock limit;
125 agentguard could not run it, or could not enforce the policy; 126 found but not
executable, or its interpreter is missing; 127 not found; 137 ended by the memory or
cpu limit, by --output where real directories are writable, or by --on-loss kill.
With --dispatch a command that ended with 0 is followed by the statuses of agentguard dispatch:
120 to 123, and nothing is sent for a command that ended otherwise.`,
		Example: `  agentguard exec -- make test                        # changes are staged: agentguard diff, commit
  agentguard exec --commit success -- npm run format  # and committed when it succeeds
  agentguard exec --mode ro -- python3 check.py       # only reads the current directory
  agentguard exec --rw out --ro /data --memory 2G --wall 10m -- ./build.sh
  agentguard exec -p policy.yaml --dry-run -- npm test
  agentguard exec --mode ro --dispatch forge.open-issue -- python3 analyse.py`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if f.cont == "" && c.Flags().Changed("continue") { // a script's variable was empty
				return f.misused(&supervisor.Refusal{What: "--continue names no run", Remedy: "leave it out, or name one: --continue last"})
			}
			return f.run(args)
		},
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return f.misused(flagError(c, err)) })
	fl := c.Flags()
	fl.SetInterspersed(false)
	f.addPolicyFlags(c)
	fl.StringVar(&f.state, "state", "", "`DIR` for the record (default /var/lib/agentguard, below it users/UID under sudo and by the helper, where this flag is refused; without both ~/.local/state/agentguard)")
	fl.StringVar(&f.cont, "continue", "", "begin with what run `ID|last` staged; what this run stages holds both")
	fl.StringArrayVar(&f.collect, "collect", nil, "commit this `FILE`, or what is below this directory, when the command has ended, whatever its status; may be repeated")
	fl.StringVar(&f.tty, "tty", supervisor.TTYAuto, "a terminal of its own for the command, `WHEN`: auto, stdin and stdout are a terminal; always, stdin and one of the others must be; never, pipes")
	fl.StringVar(&f.json, "json", "", "write the result as JSON to `FILE|fd:N|-`; with --dry-run the plan")
	fl.StringArrayVar(&f.actions, "actions", nil, "look for the action, and for brokers, in this `FILE`, which must be approved; may be repeated")
	fl.StringVar(&f.lines, "lines", "", "with --dispatch each line of stdout is a JSON text, `HOW`: all, none is sent unless all are right; each, each for itself")
	fl.BoolVar(&f.dryRun, "dry-run", false, "print the plan, with -v every system call up to execve, and run nothing")
	fl.BoolVar(&f.detach, "detach", false, "print the run's id and go on without this process, by the helper; agentguard attach, ps and runs kill are for such runs")
	fl.BoolVar(&f.withoutHelper, "without-helper", false, "do not ask the helper: run in a user namespace of this process's own, with less (see docs/unprivileged.md)")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "say nothing but errors")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "write the operational log to stderr")
	return c
}

// addPolicyFlags adds the flags that make up a policy.
func (f *execFlags) addPolicyFlags(c *cobra.Command) {
	fl := c.Flags()
	fl.SortFlags = false
	fl.StringArrayVarP(&f.policies, "policy", "p", nil, "policy `FILE`; may be repeated")
	fl.StringSliceVar(&f.profiles, "profile", nil, "policy fragments by `NAME`, such as go,node (agentguard profile ls)")
	for _, p := range policyFlags {
		fl.VarP(policyFlag{f, p.name, p.kind}, p.name, p.short, p.help)
	}
}

func (f *execFlags) run(args []string) error {
	supervisor.Hurry(true)
	entered := f.enter() // before anything is opened: it may not return
	out, err := openJSON(f.json)
	if err != nil {
		return err
	}
	var res *runs.Result
	var pol *policy.Policy
	if err = entered; err == nil {
		res, pol, err = f.execute(args, out)
	}
	if err != nil {
		return nothingRan(out, args, err)
	}
	if res == nil {
		return nil // a dry run
	}
	dispatched := f.sendStdout(res)
	if err := f.writeResult(out, res); err != nil {
		return err
	}
	if !f.quiet {
		summarise(res, pol)
	}
	if err := f.settle(res, pol); err != nil {
		if res.Status == 0 && dispatched == nil {
			return err
		}
		say(err) // the status says more
	}
	if res.Status != 0 {
		return status(res.Status)
	}
	return dispatched
}

// nothingRan says to machines too that nothing was run.
func nothingRan(out *os.File, args []string, err error) error {
	now := time.Now()
	return errors.Join(err, writeJSON(out, &runs.Result{Version: version, Argv: args, Started: now, Ended: now, Status: supervisor.StatusOf(err), Reason: runs.ReasonError, Error: err.Error()}))
}

// misused answers flags that cannot be read, where --json stands before them: what
// stands after may be the command's.
func (f *execFlags) misused(err error) error {
	out, cannot := openJSON(f.json)
	if cannot != nil {
		return errors.Join(err, cannot)
	}
	return nothingRan(out, []string{}, err)
}

// execute runs the command; both results are nil after a dry run.
func (f *execFlags) execute(args []string, out *os.File) (*runs.Result, *policy.Policy, error) {
	pol, err := f.policy()
	if err != nil {
		return nil, nil, err
	}
	if err := f.checkDetach(); err != nil {
		return nil, nil, err
	}
	if action, _ := f.dispatch(); f.mode == byHelper && (action != "" || len(pol.Broker) > 0) {
		return nil, nil, &supervisor.Refusal{What: "--dispatch and --broker: the helper makes no requests with the host's credentials", Remedy: "call as root, or dispatch the result afterwards"}
	}
	stdout, err := f.findAction(pol)
	if err != nil {
		return nil, nil, err
	}
	defer f.ready.releaseStdout(stdout)
	// The launch must not die by a reader that went away, nor leave a run behind
	// when it is told to end. Neither Ctrl-Z nor reading the terminal from the
	// background may stop us: nobody would keep the limits of the run. A run with a
	// terminal of its own is frozen first (supervisor.watcher.suspend).
	signal.Ignore(unix.SIGPIPE, unix.SIGTTIN, unix.SIGTTOU, unix.SIGTSTP)
	if f.mode == byHelper {
		res, err := f.throughHelper(args, out)
		return res, pol, err
	}
	sigs := forwarded()
	cfg := supervisor.Config{
		Policy: pol, Argv: args, Environ: os.Environ(),
		Stdin: os.Stdin, Stdout: stdout, Stderr: os.Stderr, ActionFiles: f.actions,
		TTY: f.tty, Slow: f.tellSlow(), StateDir: f.state, SealFile: systemSeal, Signals: sigs, Log: f.log(),
		Lends: f.mode == inProcess,
	}
	if cfg.Continue, err = f.continued(pol); err != nil {
		return nil, nil, err
	}
	if cfg.Continue != nil {
		defer cfg.Continue.Close()
	}
	if !f.dryRun {
		res, err := supervisor.Execute(context.Background(), cfg)
		return res, pol, err
	}
	r, err := supervisor.Prepare(cfg)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	return nil, nil, writePlan(planTo(out), r.Plan(), out != nil, f.verbose)
}

// forwarded begins to catch the signals that are the command's to hear; a hang-up only
// where nohup(1) has not said that a run is to outlive its terminal.
func forwarded() <-chan os.Signal {
	sigs := make(chan os.Signal, 16)
	if !signal.Ignored(unix.SIGHUP) {
		signal.Notify(sigs, unix.SIGHUP)
	}
	signal.Notify(sigs, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGCONT, unix.SIGALRM)
	return sigs
}

// checkDetach refuses what needs somebody who waits.
func (f *execFlags) checkDetach() error {
	switch {
	case !f.detach:
		return nil
	case f.mode != byHelper:
		return &supervisor.Refusal{What: "--detach takes the helper, which goes on with the run", Remedy: "as root: setsid agentguard exec ... &, or systemd-run"}
	case f.tty == supervisor.TTYAlways, len(f.collect) > 0, f.json != "":
		return &supervisor.Refusal{What: "--detach: nobody is there for --tty always, --collect or --json", Remedy: "leave them out; agentguard commit and runs show --json do it afterwards"}
	}
	return nil
}

// planTo is where a plan goes: to where --json says, or else to stdout.
func planTo(out *os.File) *os.File {
	if out != nil {
		return out
	}
	return os.Stdout
}

// tellSlow is for a person who waits for a start.
func (f *execFlags) tellSlow() func(string) {
	if f.quiet || f.dryRun || !isTerminal(os.Stderr) {
		return nil
	}
	return func(step string) { tell("still starting (%s)", step) }
}

// log is the operational log: silent unless -v, and never on stdout.
func (f *execFlags) log() zerolog.Logger {
	if !f.verbose {
		return zerolog.Nop()
	}
	w := zerolog.ConsoleWriter{Out: os.Stderr, NoColor: true, TimeFormat: "15:04:05.000"}
	if isTerminal(os.Stderr) {
		w.Out = crlf{os.Stderr}
	}
	return zerolog.New(w).With().Timestamp().Logger()
}

// crlf ends lines as a terminal in raw mode needs them.
type crlf struct{ to io.Writer }

func (c crlf) Write(b []byte) (int, error) {
	_, err := c.to.Write(bytes.ReplaceAll(b, []byte("\n"), []byte("\r\n")))
	return len(b), err
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// openJSON opens where the result goes, before anything runs.
func openJSON(to string) (*os.File, error) {
	if to == "" {
		return nil, nil
	}
	if num, ok := strings.CutPrefix(to, "fd:"); ok {
		return openFD(num)
	}
	if to == "-" {
		return os.Stdout, nil
	}
	c, err := caller()
	if err != nil {
		return nil, err
	}
	var f *os.File
	err = c.As(func() (err error) {
		f, err = os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
		return err
	})
	if err != nil {
		return nil, &supervisor.Refusal{What: "cannot write the result", Err: err, Remedy: "give --json a file that can be written, or fd:N"}
	}
	return f, nil
}
