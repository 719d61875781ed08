package dispatch

import (
	"bufio"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/agentguard/agentguard/internal/action"
)

// An upstream that repeats the credential where it breaks the protocol: the library's
// errors quote what they could not read. [session.run] looks for it in each outcome.
func TestBrokenAnswersQuoteNothing(t *testing.T) {
	const ok = "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\n"
	for name, answer := range map[string]string{
		"status line": "Bearer " + canary + "\r\n\r\n",
		"escaped":     `HTTP/1.1 CANARY-"` + "\r\n\r\n", // as the library quotes it: no search finds it
		"status code": "HTTP/1.1 " + canary + " no\r\n\r\n",
		"version":     canary + " 200 OK\r\n\r\n",
		"header":      ok + "Bearer " + canary + "\r\n\r\n",
		"length":      ok + "Content-Length: " + canary + "\r\n\r\n",
		"encoding":    ok + "Transfer-Encoding: " + canary + "\r\n\r\n",
		"location":    "HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: http://[" + canary + "\r\n\r\n",
		"chunk":       ok + "Transfer-Encoding: chunked\r\n\r\n" + canary + "\r\n",
		"trailer":     ok + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nBearer " + canary + "\r\n\r\n",
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				_, _ = c.Write([]byte(answer))
			}
		}()
		s := &session{job: action.Job{File: []byte(actions("http://"+l.Addr().String(), "")), Name: "a.yaml"}}
		o := s.run(t, strings.NewReader(`{"repo": "r", "title": "t"}`))[0]
		if o.Outcome != action.Failed && o.Outcome != action.Rejected || o.Sent == action.SentNo || o.Why == "" || strings.Contains(o.Why, "CANARY") {
			t.Errorf("%s: %+v", name, o)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
