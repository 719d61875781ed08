//go:build linux && amd64

package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseSpec(t *testing.T) {
	tests := []struct {
		name, src string
		want      spec
		wantErr   string
	}{
		{name: "command only", src: "arg=true\x00", want: spec{Args: []string{"true"}, Dir: "/"}},
		{
			name: "everything, in any order",
			src:  "env=A=b=c\x00arg=sh\x00dir=/some dir\x00timeout=30\x00share=/a\x00share=/tmp/b\x00arg=-c\x00arg=\x00arg=a\nb\x00",
			want: spec{Args: []string{"sh", "-c", "", "a\nb"}, Env: []string{"A=b=c"}, Dir: "/some dir", Share: []string{"/a", "/tmp/b"}, Timeout: 30 * time.Second},
		},
		{name: "no command", src: "dir=/\x00", wantErr: "no command"},
		{name: "empty", src: "", wantErr: `field "" has no value`},
		{name: "unknown key", src: "arg=x\x00cwd=/\x00", wantErr: `unknown key "cwd"`},
		{name: "negative limit", src: "arg=x\x00timeout=-1\x00", wantErr: `timeout: strconv.ParseUint: parsing "-1": invalid syntax`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseSpec([]byte(tt.src))
			if msg := errString(err); msg != tt.wantErr {
				t.Fatalf("error %q, want %q", msg, tt.wantErr)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("spec differs (-want +got):\n%s", diff)
			}
		})
	}
}

func errString(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
