// Package dispatch makes the requests of actions: it reads what a command
// printed, checks it against the schema, fills in the templates, sends, and lets
// through of the answer what the action names. It runs in a process of its own,
// agentguard-http, which has given up everything else.
package dispatch

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/agentguard/agentguard/internal/action"
	"github.com/agentguard/agentguard/internal/lockdown"
)

// Memory of the process, in bytes.
const (
	softMemory = 256 << 20
	hardMemory = 1 << 30
)

// Main is the process; it returns its exit status.
func Main() int {
	if err := serve(os.Stdin, os.Stdout, os.NewFile(action.InputFD, "input"), lockdown.Enter); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// server works through one job.
type server struct {
	job    action.Job
	action *action.Action
	schema *schema
	from   *json.Decoder
	to     *json.Encoder
	input  io.Reader
	sender *sender
	secret *action.Secret
}

func serve(in io.Reader, out io.Writer, input io.Reader, lock func([]byte, int64, int64) error) error {
	s := &server{from: json.NewDecoder(in), to: json.NewEncoder(out), input: input}
	if err := s.from.Decode(&s.job); err != nil {
		return fmt.Errorf("reading the job: %w", err)
	}
	if err := lock(s.job.Filter, softMemory, hardMemory); err != nil {
		return err
	}
	defer func() { s.secret.Erase() }()
	problem, err := s.run()
	if err != nil {
		return err
	}
	return s.to.Encode(action.Message{Done: true, Problem: problem})
}

// run returns what is wrong with the file of actions itself, for people.
func (s *server) run() (problem string, err error) {
	file, err := action.Parse(s.job.Name, s.job.File)
	if err != nil {
		return err.Error(), nil
	}
	if s.job.Action == "" {
		return checkSchemas(file), nil
	}
	if s.action = file.Find(s.job.Action); s.action == nil {
		return "the file has no such action", nil
	}
	if s.schema, err = newSchema(s.action); err != nil {
		return err.Error(), nil
	}
	var roots *x509.CertPool
	if s.action.Destination.CAFile != "" {
		if roots = x509.NewCertPool(); !roots.AppendCertsFromPEM(s.job.CA) {
			return "destination.ca_file has no certificate", nil
		}
	}
	s.sender = newSender(s.action, roots)
	if s.job.Lines == action.LinesOne {
		return "", s.one()
	}
	return "", s.lines()
}

func checkSchemas(file *action.File) string {
	var errs []error
	for _, a := range file.Actions {
		_, err := newSchema(a)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err.Error()
	}
	return ""
}

// prepared is an input and what is made of it.
type prepared struct {
	out     *action.Outcome
	request *request // nil: the input was refused
}

// prepare checks one input; nothing is sent.
func (s *server) prepare(b []byte, n int) prepared {
	sum := sha256.Sum256(b)
	o := &action.Outcome{
		V: 1, Action: s.action.Name, Line: n, Sent: action.SentNo, Method: s.action.Method, Destination: s.action.URL.Origin(),
		InputSHA256: hex.EncodeToString(sum[:]), InputBytes: int64(len(b)),
	}
	refuse := func(f faults, why string) prepared {
		o.Outcome, o.Why, o.Errors = action.Refused, why, f
		return prepared{out: o}
	}
	if int64(len(b)) > s.action.Limits.RequestBytes {
		o.InputSHA256 = "" // of what was read, which is not all
		return refuse(nil, fmt.Sprintf("the input is larger than %d bytes (limits.request_bytes)", s.action.Limits.RequestBytes))
	}
	v, f := decode(b)
	if len(f) > 0 {
		return refuse(f, "the input is not JSON as it should be")
	}
	if f = s.schema.check(v); len(f) > 0 {
		return refuse(f, "the input does not match the schema of the action")
	}
	r, f := render(s.action, v)
	if len(f) > 0 {
		return refuse(f, "the input may not stand in the request")
	}
	return prepared{o, r}
}

// one reads the whole input as one JSON text.
func (s *server) one() error {
	b, err := io.ReadAll(io.LimitReader(s.input, s.action.Limits.RequestBytes+1))
	if err != nil {
		return fmt.Errorf("reading the input: %w", err)
	}
	_, err = s.asked(s.prepare(b, 0))
	return err
}

// lines reads one JSON text from each line.
func (s *server) lines() error {
	in := bufio.NewReaderSize(s.input, 64<<10)
	var all []prepared
	bad, held := false, int64(0)
	for n := 1; ; n++ {
		b, err := readLine(in, s.action.Limits.RequestBytes)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("reading the input: %w", err)
		}
		if int64(len(b)) <= s.action.Limits.RequestBytes && len(bytes.TrimSpace(b)) == 0 {
			continue
		}
		p := s.prepare(b, n)
		if n > MaxLines {
			p = prepared{out: p.out}
			p.out.Outcome, p.out.Why, p.out.Errors = action.Refused, fmt.Sprintf("more than %d lines", MaxLines), nil
		}
		if s.job.Lines == action.LinesEach {
			if on, err := s.asked(p); err != nil || !on || n > MaxLines {
				return err
			}
			continue
		}
		all, bad = append(all, p), bad || p.request == nil
		if held += int64(len(b)); n > MaxLines || held > maxHeld {
			bad = true
			break
		}
	}
	return s.allOrNothing(all, bad, held > maxHeld)
}

// MaxLines and maxHeld bound what is looked at, in lines and in bytes.
const (
	MaxLines = action.MaxLines
	maxHeld  = 64 << 20
)

// allOrNothing sends all requests, or none where one of them is not to be sent.
func (s *server) allOrNothing(all []prepared, bad, large bool) error {
	most := s.action.Limits.PerRun
	outcome, why := "", ""
	switch {
	case large:
		outcome, why = action.Refused, fmt.Sprintf("the lines have more than %d bytes together", maxHeld)
	case bad:
		outcome, why = action.Refused, "another line was refused, and all or none are sent"
	case int64(len(all)) > most:
		outcome, why = action.Limited, fmt.Sprintf("%d lines, and limits.per_run is %d", len(all), most)
	case !s.job.DryRun && len(all) > 0:
		refused, err := s.ask(all)
		if err != nil {
			return err
		}
		if refused != "" {
			outcome, why = action.Limited, refused
		}
	}
	for _, p := range all {
		if p.request != nil && outcome != "" {
			p.out.Outcome, p.out.Why, p.request = outcome, why, nil
		}
		if err := s.finish(p); err != nil {
			return err
		}
	}
	return nil
}

// readLine returns a line, or one byte more than limit of it and skips its rest.
func readLine(in *bufio.Reader, limit int64) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if room := limit + 2 - int64(len(line)); room > 0 {
			line = append(line, part[:min(int64(len(part)), room)]...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if errors.Is(err, io.EOF) && len(line) > 0 {
			err = nil
		}
		return bytes.TrimSuffix(line, []byte("\n")), err
	}
}

// finish sends a request, and tells what came of it.
func (s *server) finish(p prepared) error {
	switch {
	case p.request == nil:
	case s.job.DryRun:
		var shown action.Proof
		if s.action.Credential != nil {
			shown = s.action.Auth.Shown()
		}
		p.out.Outcome, p.out.Request = action.DryRun, p.request.shown(shown)
	default:
		s.sender.send(context.Background(), p.request, s.secret, p.out)
	}
	return s.to.Encode(action.Message{Outcome: p.out})
}

// asked finishes one input by itself. on is false when a limit was met: what
// follows would meet it too.
func (s *server) asked(p prepared) (on bool, err error) {
	on = true
	if p.request != nil && !s.job.DryRun {
		refused, err := s.ask([]prepared{p})
		if err != nil {
			return false, err
		}
		if refused != "" {
			on, p.request, p.out.Outcome, p.out.Why = false, nil, action.Limited, refused
		}
	}
	return on, s.finish(p)
}

// ask asks whether requests may be sent, and takes the credential.
func (s *server) ask(list []prepared) (refused string, err error) {
	var m action.Message
	for _, p := range list {
		m.Ask = append(m.Ask, p.out)
	}
	if err := s.to.Encode(m); err != nil {
		return "", err
	}
	var r action.Reply
	if err := s.from.Decode(&r); err != nil {
		return "", fmt.Errorf("reading the answer: %w", err)
	}
	if r.Secret != nil {
		s.secret = action.NewSecret(r.Secret)
	}
	return r.Refused, nil
}
