package dispatch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/agentguard/agentguard/internal/action"
)

const canary = "CANARY-s3cr3t-value"

// actions is a file with one action against a server on loopback.
func actions(url, more string) string {
	return `actions:
  forge.open-issue:
    input:
      type: object
      additionalProperties: false
      required: [repo, title]
      properties:
        repo: {type: string, maxLength: 200}
        title: {type: string, minLength: 1}
        labels: {type: array, maxItems: 2, items: {type: string}}
        n: {type: integer, maximum: 10}
        deep: {}
    request:
      method: POST
      url: "` + url + `/repos/{repo}/issues?title={title}"
      headers: {X-Title: "about {repo}"}
    credential: {env: TOKEN}
    auth: {scheme: bearer}
    destination: {plain_http: loopback}
    limits: {request_bytes: 1K, response_bytes: 2K, timeout: 60s, per_run: 3}
    response: {status: [201], fields: [/number, /html_url]}
` + more
}

// session runs a job with this input, and answers what it asks.
type session struct {
	job     action.Job
	refuse  string
	asked   int // requests that were asked for
	problem string
}

func (s *session) run(t *testing.T, input io.Reader) []*action.Outcome {
	t.Helper()
	toServer, fromServer := pipe(), pipe()
	done := make(chan error, 1)
	go func() {
		err := serve(toServer.r, fromServer.w, input, func([]byte, int64, int64) error { return nil })
		fromServer.w.CloseWithError(errors.Join(err, io.EOF))
		done <- err
	}()
	enc, dec := json.NewEncoder(toServer.w), json.NewDecoder(fromServer.r)
	if s.job.Action == "" {
		s.job.Action = "forge.open-issue"
	}
	if err := enc.Encode(&s.job); err != nil {
		t.Fatal(err)
	}
	var out []*action.Outcome
	for {
		var m action.Message
		if err := dec.Decode(&m); err != nil {
			t.Fatalf("%v; the process: %v", err, <-done)
		}
		switch {
		case m.Ask != nil:
			s.asked += len(m.Ask)
			if err := enc.Encode(&action.Reply{Refused: s.refuse, Secret: []byte(canary)}); err != nil {
				t.Fatal(err)
			}
		case m.Outcome != nil:
			out = append(out, m.Outcome)
			if b, _ := json.Marshal(m.Outcome); bytes.Contains(b, []byte(canary)) {
				t.Errorf("the credential is in %s", b)
			}
		case m.Done:
			s.problem = m.Problem
			return out
		}
	}
}

func pipe() (p struct {
	r *io.PipeReader
	w *io.PipeWriter
},
) {
	p.r, p.w = io.Pipe()
	return p
}

// upstream is a forge that remembers what it was asked.
type upstream struct {
	*httptest.Server
	requests []string
	answer   func(w http.ResponseWriter)
}

func newUpstream(t *testing.T) *upstream {
	u := &upstream{answer: func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"number": 7, "html_url": "http://forge/7", "token": "other"}`)
	}}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		u.requests = append(u.requests, fmt.Sprintf("%s %s %q auth=%q type=%q x=%q", r.Method, r.URL.RequestURI(), b, r.Header.Get("Authorization"), r.Header.Get("Content-Type"), r.Header.Get("X-Title")))
		u.answer(w)
	}))
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) session(more string) *session {
	return &session{job: action.Job{File: []byte(actions(u.URL, more)), Name: "a.yaml"}}
}
