package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentguard/agentguard/internal/testenv"
)

type client struct {
	name  string
	needs string // a program, or a file
	argv  []string
	want  string
	files map[string]string
}

// clients are ordinary programs that know of no proxy. Each fetches something
// from its server by name, over TLS where it can, and says so on its output.
var clients = []client{
	{name: "curl", needs: "curl", argv: []string{"curl", "-sS", "--cacert", "ca.pem", "https://api.test.example:8443/curl"}, want: "hello /curl"},
	{name: "curl over IPv6", needs: "curl", argv: []string{"curl", "-6sS", "--cacert", "ca.pem", "https://api.test.example:8443/6"}, want: "hello /6"},
	{name: "curl, upload", needs: "curl", argv: []string{"sh", "-c", "head -c 3000000 /dev/zero | curl -sS --cacert ca.pem -T - https://api.test.example:8443/put"}, want: "hello /put 3000000"},
	{name: "wget", needs: "wget", argv: []string{"wget", "-qO-", "--ca-certificate=ca.pem", "https://api.test.example:8443/wget"}, want: "hello /wget"},
	{name: "git", needs: "git", argv: []string{"sh", "-c", "git -c http.sslCAInfo=$PWD/ca.pem clone -q https://git.test.example:8443/repo.git /tmp/repo && cat /tmp/repo/README"}, want: "from git"},
	{name: "git over ssh", needs: "/usr/sbin/sshd", argv: []string{"sh", "-c", `install -m 600 ssh/id /tmp/id &&
		GIT_SSH_COMMAND="ssh -F /dev/null -i /tmp/id -o IdentitiesOnly=yes -o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=no -o LogLevel=ERROR" git clone -q ssh://root@git.test.example:2222$REPO /tmp/repo && cat /tmp/repo/README`}, want: "from git"},
	{name: "musl", needs: "musl-gcc", argv: []string{"./musl"}, want: "HTTP/1.0 400"},
	{name: "urllib", needs: "/usr/bin/python3", argv: []string{"/usr/bin/python3", "urllib_.py"}, want: "hello /urllib", files: map[string]string{"urllib_.py": `
import ssl, urllib.request
print(urllib.request.urlopen("https://api.test.example:8443/urllib", context=ssl.create_default_context(cafile="ca.pem")).read().decode())
`}},
	{name: "requests", needs: "/usr/lib/python3/dist-packages/requests", argv: []string{"/usr/bin/python3", "session.py"}, want: "10 answers, hello /put 100000", files: map[string]string{"session.py": `
import requests
with requests.Session() as s:
    s.verify = "ca.pem"
    n = sum(s.get("https://api.test.example:8443/%d" % i, timeout=20).text == "hello /%d" % i for i in range(10))
    print("%d answers, %s" % (n, s.put("https://api.test.example:8443/put", data=b"x" * 100000, timeout=20).text))
`}},
	{name: "asyncio", needs: "/usr/bin/python3", argv: []string{"/usr/bin/python3", "asyncio_.py"}, want: "20 answers", files: map[string]string{"asyncio_.py": `
import asyncio, ssl
ctx = ssl.create_default_context(cafile="ca.pem")
async def get(i):
    r, w = await asyncio.open_connection("api.test.example", 8443, ssl=ctx)
    w.write(b"GET /%d HTTP/1.0\r\nHost: api.test.example\r\n\r\n" % i); await w.drain()
    b = await r.read(); w.close(); return b"hello /%d" % i in b
async def main(): print(sum(await asyncio.gather(*[get(i) for i in range(20)])), "answers")
asyncio.run(main())
`}},
	{name: "node fetch", needs: "node", argv: []string{"node", "fetch.mjs"}, want: "hello /node", files: map[string]string{"fetch.mjs": `
const r = await fetch("https://api.test.example:8443/node"); console.log(await r.text());
`}},
	{name: "Go", argv: []string{"./gotest"}, want: "hello /go"},
	{name: "Java", needs: "javac", argv: []string{"java", "-cp", ".", "-Djavax.net.ssl.trustStore=trust.p12", "-Djavax.net.ssl.trustStorePassword=changeit", "Get"}, want: "hello /java"},
	{name: "npm", needs: "npm", argv: []string{"sh", "-c", "cd /tmp && npm install --no-audit --no-fund --loglevel=error tiny && node -e 'console.log(require(\"tiny\"))'"}, want: "from the registry"},
	{name: "psql", needs: "psql", argv: []string{"psql", "-h", "db.test.example", "-p", "5433", "-U", "tester", "-Atc", "select 6*7", "postgres"}, want: "42"},
	{name: "psql, unix socket", needs: "psql", argv: []string{"sh", "-c", "psql -h $PWD/pg -p 5433 -U tester -Atc 'select 6*8' postgres"}, want: "48"},
	{name: "redis-cli", needs: "redis-cli", argv: []string{"redis-cli", "-h", "redis.test.example", "-p", "6380", "SET", "k", "v"}, want: "OK"},
}

const clientPolicy = `
sandbox:
  filesystem: {workspace: {path: .}}
  network:
    allowlist: ["api.test.example:8443", "git.test.example:8443", "git.test.example:2222", "*.registry.example:8443", "db.test.example:5433", "redis.test.example:6380"]
    %s
  env:
    allowlist: [PATH]
    set: {NODE_EXTRA_CA_CERTS: %[2]s/ca.pem, SSL_CERT_FILE: %[2]s/ca.pem, NPM_CONFIG_CAFILE: %[2]s/ca.pem, NPM_CONFIG_REGISTRY: "https://npm.registry.example:8443/", AGENTGUARD_TEST_ACT: get, REPO: %[3]s}
`

// Real programs reach what is allowed, and nothing of them had to be told.
func TestClients(t *testing.T) {
	w := newWorld(t)
	w.nameServers()
	repo := w.gitRepository()
	w.serveHTTPS(repo)
	w.serveSSH()
	w.prepareMusl()
	sockets := w.servePostgres()
	w.serveRedis()
	w.prepareGo()
	w.prepareJava()
	w.write("policy.yaml", fmt.Sprintf(clientPolicy, sockets, w.dir, repo))
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) { w.fetch(t, c) })
	}
}

func (w *world) nameServers() {
	for _, n := range []string{"api", "git", "db", "redis"} {
		w.name(n+".test.example", "203.0.113.10", "2001:db8:5::10")
	}
	w.name("npm.registry.example", "203.0.113.10")
}

// fetch runs one client.
func (w *world) fetch(t *testing.T, c client) {
	t.Helper()
	if c.needs != "" {
		_, err := exec.LookPath(c.needs)
		if strings.HasPrefix(c.needs, "/") { // a program, or a package of one
			_, err = os.Stat(c.needs)
		}
		if err != nil {
			testenv.Missing(t, "clients", err.Error())
		}
	}
	for name, content := range c.files {
		w.write(name, content)
	}
	out, res := w.exec([]string{"-p", "policy.yaml"}, c.argv...)
	if !strings.Contains(out, c.want) || res.Status != 0 {
		t.Errorf("status %d, %s", res.Status, out)
	}
	if c.name != "psql, unix socket" && len(res.Network) == 0 {
		t.Error("no destination in the result")
	}
}

func (w *world) serveHTTPS(repo string) {
	tarball := npmPackage(w.t)
	hello := func(rw http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(rw, "hello %s", r.URL.Path)
		if n > 0 {
			fmt.Fprintf(rw, " %d", n)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("api.test.example/", hello)
	mux.Handle("git.test.example/", http.FileServer(http.Dir(filepath.Dir(repo))))
	mux.HandleFunc("npm.registry.example/tiny", func(rw http.ResponseWriter, _ *http.Request) {
		sum := sha512.Sum512(tarball)
		fmt.Fprintf(rw, `{"name":"tiny","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"tiny","version":"1.0.0","dist":{"tarball":"https://npm.registry.example:8443/tiny.tgz","integrity":"sha512-%s"}}}}`,
			base64.StdEncoding.EncodeToString(sum[:]))
	})
	mux.HandleFunc("npm.registry.example/tiny.tgz", func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(tarball) })
	names := []string{"api.test.example", "git.test.example", "npm.registry.example"}
	for _, at := range []string{"203.0.113.10:8443", "[2001:db8:5::10]:8443"} {
		w.https(at, withoutPort(mux), names...)
	}
}

// withoutPort lets a mux match hosts, which come with their port.
func withoutPort(h http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if host, _, err := net.SplitHostPort(r.Host); err == nil {
			r.Host = host
		}
		h.ServeHTTP(rw, r)
	})
}

// gitRepository makes a bare repository that a file server can serve.
func (w *world) gitRepository() string {
	w.t.Helper()
	dir := w.t.TempDir()
	repo := filepath.Join(dir, "repo.git")
	for _, args := range [][]string{
		{"init", "-q", dir + "/source"},
		{"-C", dir + "/source", "add", "README"},
		{"-C", dir + "/source", "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "first"},
		{"clone", "-q", "--bare", dir + "/source", repo},
		{"-C", repo, "update-server-info"},
	} {
		if args[len(args)-1] == "README" {
			if err := os.WriteFile(dir+"/source/README", []byte("from git\n"), 0o644); err != nil {
				w.t.Fatal(err)
			}
		}
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			w.t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	return repo
}

func npmPackage(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	a := tar.NewWriter(z)
	for name, content := range map[string]string{
		"package/package.json": `{"name":"tiny","version":"1.0.0","main":"index.js"}`, "package/index.js": `module.exports = "from the registry"`,
	} {
		if err := a.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(a, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// prepareGo copies this test as a client: TestMain becomes it by a variable.
func (w *world) prepareGo() {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		w.t.Fatal(err)
	}
	w.write("gotest", string(self))
}

func getAsGo() {
	c := http.Client{Timeout: 20 * time.Second}
	r, err := c.Get("https://api.test.example:8443/go")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	_, _ = io.Copy(os.Stdout, r.Body)
	r.Body.Close()
}

const javaGet = `
import java.net.URI;
import java.net.http.*;
public class Get {
  public static void main(String[] a) throws Exception {
    var r = HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create("https://api.test.example:8443/java")).build(), HttpResponse.BodyHandlers.ofString());
    System.out.println(r.body());
  }
}
`

func (w *world) prepareJava() {
	if _, err := exec.LookPath("javac"); err != nil {
		return
	}
	w.write("Get.java", javaGet)
	for _, argv := range [][]string{
		{"javac", "Get.java"},
		{"keytool", "-importcert", "-noprompt", "-alias", "test", "-file", "ca.pem", "-keystore", "trust.p12", "-storepass", "changeit", "-storetype", "PKCS12"},
	} {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Dir = w.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			w.t.Fatalf("%q: %v\n%s", argv, err, out)
		}
	}
}

// servePostgres starts a server of its own and returns the policy lines for its socket.
func (w *world) servePostgres() string {
	bins, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	if len(bins) == 0 {
		return ""
	}
	bin, data, sock := bins[len(bins)-1], filepath.Join(w.dir, ".pgdata"), filepath.Join(w.dir, "pg")
	for _, d := range []string{data, sock} {
		if err := os.Mkdir(d, 0o755); err != nil {
			w.t.Fatal(err)
		}
		if err := os.Chown(d, 65534, 65534); err != nil {
			w.t.Fatal(err)
		}
	}
	as := func(argv ...string) *exec.Cmd {
		cmd := exec.Command("setpriv", append([]string{"--reuid", "65534", "--regid", "65534", "--clear-groups"}, argv...)...)
		cmd.Dir, cmd.Env = data, []string{"PATH=" + os.Getenv("PATH"), "LANG=C"}
		return cmd
	}
	if out, err := as(bin+"/initdb", "-D", data, "-U", "tester", "-A", "trust", "--no-sync").CombinedOutput(); err != nil {
		w.t.Fatalf("initdb: %v\n%s", err, out)
	}
	hba := "local all all trust\nhost all all 0.0.0.0/0 trust\nhost all all ::/0 trust\n"
	if err := os.WriteFile(data+"/pg_hba.conf", []byte(hba), 0o644); err != nil {
		w.t.Fatal(err)
	}
	server := as(bin+"/postgres", "-D", data, "-p", "5433", "-k", sock, "-c", "listen_addresses=203.0.113.10", "-c", "fsync=off")
	if err := server.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = server.Process.Signal(os.Interrupt); _ = server.Wait() })
	w.await("203.0.113.10:5433")
	return "unix: [pg/.s.PGSQL.5433]"
}

// serveSSH starts a server that lets root in with the key in the workspace.
func (w *world) serveSSH() {
	if _, err := os.Stat("/usr/sbin/sshd"); err != nil {
		return
	}
	dir := filepath.Join(w.dir, "ssh")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.MkdirAll("/run/sshd", 0o755)); err != nil {
		w.t.Fatal(err)
	}
	for _, name := range []string{"id", "host"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, name)).CombinedOutput(); err != nil {
			w.t.Fatalf("ssh-keygen: %v\n%s", err, out)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "id"), 0o644); err != nil { // the command's user must read it; ssh gets a copy
		w.t.Fatal(err)
	}
	server := exec.Command("/usr/sbin/sshd", "-D", "-f", "/dev/null", "-p", "2222", "-h", filepath.Join(dir, "host"),
		"-o", "ListenAddress=203.0.113.10", "-o", "AuthorizedKeysFile="+filepath.Join(dir, "id.pub"), "-o", "StrictModes=no",
		"-o", "PermitRootLogin=prohibit-password", "-o", "UsePAM=no", "-o", "PidFile=none")
	if err := server.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	w.await("203.0.113.10:2222")
}

const muslGet = `
#include <netdb.h>
#include <stdio.h>
#include <unistd.h>
#include <sys/socket.h>
int main(void)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG }, *list, *a;
	char b[200] = "";
	int err = getaddrinfo("api.test.example", "8443", &hints, &list);
	if (err) { puts(gai_strerror(err)); return 1; }
	for (a = list; a; a = a->ai_next) {
		int s = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
		if (!connect(s, a->ai_addr, a->ai_addrlen) && write(s, "GET / HTTP/1.0\r\n\r\n", 18) == 18 && read(s, b, sizeof(b) - 1) > 0) { puts(b); return 0; }
		close(s);
	}
	return 2;
}
`

// prepareMusl builds a client with the other C library: its resolver is its own.
func (w *world) prepareMusl() {
	if _, err := exec.LookPath("musl-gcc"); err != nil {
		return
	}
	w.write("musl.c", muslGet)
	if out, err := exec.Command("musl-gcc", "-static", "-o", filepath.Join(w.dir, "musl"), filepath.Join(w.dir, "musl.c")).CombinedOutput(); err != nil {
		w.t.Fatalf("musl-gcc: %v\n%s", err, out)
	}
}

func (w *world) serveRedis() {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return
	}
	server := exec.Command("redis-server", "--port", "6380", "--bind", "203.0.113.10", "--save", "", "--protected-mode", "no")
	if err := server.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	w.await("203.0.113.10:6380")
}

// await waits until somebody listens.
func (w *world) await(at string) {
	w.t.Helper()
	for range 600 {
		if c, err := net.Dial("tcp", at); err == nil {
			c.Close()
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	w.t.Fatalf("nobody listens at %s", at)
}
