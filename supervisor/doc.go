// Package supervisor runs a command in an envelope of kernel mechanisms and
// keeps the kernel's record of it. It is the only package that knows the order
// of things; the mechanisms are in packages below it.
//
// Execute does all of it, and returns when the command has ended and its record
// is sealed. Meanwhile Config.Events is told the record. Prepare stops short of the
// start, so that the plan can be looked at: Intent (a policy), Plan, Run. A plan is a
// pure function of the policy, the probed host and the command; nothing decides later.
//
// A Refusal is an error that a person can act on: what was refused, by which
// clause of the policy, what would change it. Nothing has run then. A command
// that ran and failed, or that a limit ended, is no error: the result says so.
//
// # A program that uses it
//
// Package policy makes the policy: Defaults are what the command "agentguard exec" begins
// with, ReadFile and FromFlags read what a caller adds, Merge makes one of them, and
// its StageLimited stages a workspace that is writable up to a size. The main
// function begins with Main:
//
//	func main() {
//		supervisor.Main()
//		...
//		res, err := supervisor.Execute(ctx, supervisor.Config{Policy: p, Argv: argv, ...})
//
// Several commands may run at once; each has a cgroup, a record and a sensor's ring
// of its own. Nothing bounds a policy here: where /etc/agentguard/ceiling.yaml
// is to count, the program reads it (policy.ReadCeiling) and applies it before.
//
// The process must be root's: namespaces, cgroups and BPF programs are made. Its
// threads are locked and given up in places where credentials change; the
// process must not be built with cgo, since the committing process changes the
// ids of all threads at once.
//
// Linux only.
package supervisor
