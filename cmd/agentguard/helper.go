//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"os/user"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/agentguard/agentguard/internal/helper"
	"github.com/agentguard/agentguard/internal/lockdown"
	"github.com/agentguard/agentguard/supervisor"
)

// newHelper is agentguardd: what makes runs for callers without root.
func newHelper() *cobra.Command {
	c := &cobra.Command{
		Use: "helper", Short: "Serve callers without root: the privileged helper (agentguardd)", Args: cobra.NoArgs,
		Long: `helper listens on a unix socket and makes runs for users who have no root. systemd starts
it (agentguard.socket); by hand or from an init script it makes the socket itself. Who may
use it is a matter of the socket's mode and group. What each may have is bounded by
/etc/agentguard/ceiling.yaml, ceiling.d/group-GID.yaml and ceiling.d/user-UID.yaml: all
that apply hold.

Each request, granted or refused, is a line of /var/lib/agentguard/helper.log and of
stderr. Runs go on when the helper is stopped or started again. Who may read the records of
all users, which confined callers are taken, and how large the log may grow, is in
/etc/agentguard/helper.yaml.

Exit status: 0 it was told to end (SIGTERM, SIGINT); 125 it could not serve.`,
		Example: "  agentguard helper --group agentguard\n  systemctl enable --now agentguard.socket",
	}
	socket := c.Flags().String("socket", defaultSocket, "`PATH` of the socket, in a directory that only root can write, which callers name by AGENTGUARD_SOCKET; not with systemd")
	group := c.Flags().String("group", "", "`GROUP` that may use it, by name or number (default: everybody)")
	c.RunE = func(*cobra.Command, []string) error { return listen(*socket, *group) }
	return c
}

// requestEnv is the environment of the processes that serve: nothing of whoever
// started the helper.
var requestEnv = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"}

func listen(socket, group string) error {
	if os.Geteuid() != 0 {
		return &supervisor.Refusal{What: "the helper acts for others, which takes root", Remedy: "start it as root, or as agentguard.socket"}
	}
	gid, mode, err := access(group)
	if err != nil {
		return err
	}
	if err := supervisor.MakeRuntimeDir(); err != nil {
		return err
	}
	l, err := helper.Listen(socket, mode, gid)
	if err != nil {
		return &supervisor.Refusal{What: "the helper cannot listen", Err: err}
	}
	defer l.Close()
	rules, err := helper.ReadConfig(helperConfig)
	if err != nil {
		return err
	}
	log, err := openHelperLog()
	if err != nil {
		return err
	}
	defer log.Close()
	log.Bound(rules)
	// All that the processes of requests have is in the bounding and the permitted set. The
	// listener itself uses none of it.
	birth := supervisor.BirthCapabilities()
	if err := errors.Join(lockdown.Bound(birth), lockdown.Use(0, birth)); err != nil {
		return err
	}
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP) // of logrotate: the log is followed to wherever it is
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	return helper.NewListener(l, log, requestEnv).Serve(ctx)
}

// access is who may connect: everybody, or one group.
func access(group string) (gid int, mode os.FileMode, err error) {
	if group == "" {
		return 0, 0o666, nil
	}
	if gid, err = strconv.Atoi(group); err == nil && gid >= 0 {
		return gid, 0o660, nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, 0, &supervisor.Refusal{What: "--group: " + err.Error()}
	}
	gid, err = strconv.Atoi(g.Gid)
	return gid, 0o660, err
}

// serveMain is a process that the helper has started.
func serveMain() int {
	refused, err := serveRequest()
	switch {
	case err != nil:
		say(errors.Join(err))
		return supervisor.StatusFailed
	case refused:
		return helper.RefusedStatus
	}
	return 0
}
