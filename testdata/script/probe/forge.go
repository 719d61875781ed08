package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
)

// forge is a small part of a forge's API on loopback: it takes issues from
// whoever has the token, and writes down what it was asked. Its port
// comes to lie in the file "port" when it listens. It serves until it is killed.
func forge(addr, token string) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		fatal(err.Error())
	}
	issues := 0
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v1/repos/{owner}/{repo}/issues", func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		note("%s %s %s %v\n", r.Method, r.URL.RequestURI(), b, err)
		w.Header().Set("Content-Type", "application/json")
		if r.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		issues++
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(map[string]any{
			"number": issues, "html_url": fmt.Sprintf("http://%s/%s/%s/issues/%d", r.Host, r.PathValue("owner"), r.PathValue("repo"), issues),
			"you_sent": strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "),
		})
	})
	mux.HandleFunc("GET /redirect", func(w http.ResponseWriter, r *http.Request) {
		note("GET /redirect\n")
		http.Redirect(w, r, "http://169.254.169.254/latest/meta-data/", http.StatusFound)
	})
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if err := os.WriteFile("port", []byte(port), 0o644); err != nil {
		fatal(err.Error())
	}
	fatal(http.Serve(l, mux).Error())
}

// note writes a line of what was asked.
func note(format string, args ...any) {
	f, err := os.OpenFile("requests", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		fatal(err.Error())
	}
	fmt.Fprintf(f, format, args...)
	_ = f.Close()
}
