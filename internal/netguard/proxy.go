package netguard

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"
	"golang.org/x/sys/unix"
)

// Proxy is what a caller's environment says about leading connections out: the
// variables as they are, credentials too, so it is never printed or recorded.
type Proxy struct {
	URL     string `json:"url"`      // [http://][USER:PASSWORD@]HOST[:PORT]
	NoProxy string `json:"no_proxy"` // as of [httpproxy.Config]
}

// ErrScheme means that a proxy is not one that is spoken to with CONNECT in the clear.
var ErrScheme = errors.New("only http:// proxies are supported")

// Address is HOST:PORT of the proxy, without its credentials. The errors do not
// have the URL in them.
func (p *Proxy) Address() (string, error) {
	u, err := p.server("host.invalid:443", "")
	switch {
	case err != nil:
		return "", err
	case u == nil: // what cannot be parsed counts as none
		return "", errors.New("it is no address of a proxy")
	}
	return u.Host, nil
}

// server returns the proxy for a destination, with its port; nil where there is none.
func (p *Proxy) server(to, noProxy string) (*url.URL, error) {
	cfg := httpproxy.Config{HTTPSProxy: p.URL, NoProxy: noProxy}
	u, err := cfg.ProxyFunc()(&url.URL{Scheme: "https", Host: to})
	switch {
	case err != nil:
		return nil, errors.New("it cannot be told whether there is one") // err may show the URL
	case u == nil:
		return nil, nil
	case u.Scheme != "http":
		return nil, ErrScheme
	case u.Hostname() == "":
		return nil, errors.New("the address of the proxy has no host")
	}
	if u.Port() == "" {
		u.Host = net.JoinHostPort(u.Hostname(), "80")
	}
	return u, nil
}

// errInside means that a name that is not a public one would be left to the proxy.
var errInside = errors.New("a name of a private network is not asked of a proxy; allow_private or no_proxy would permit it")

// localDomains are never public (RFC 6761, 6762, 8375, ICANN's reserved "internal",
// and what networks use without asking).
var localDomains = []string{"local", "localhost", "internal", "intranet", "private", "corp", "home", "lan", "arpa", "test", "invalid", "onion"}

// tellLimit is how long the host's own resolver may take to say that a name
// leads to a private address, before the proxy is asked. One that has not
// answered is left alone for untoldFor.
const (
	tellLimit = 2 * time.Second
	untoldFor = time.Minute
)

// through dials by way of the proxy where the destination has one; used is
// false where it has none. The proxy resolves a name; what can be known here is checked
// first: the name itself, and the addresses that the host finds for it, if any.
func (d *dialer) through(ctx context.Context, proto string, dest destination) (c net.Conn, used bool, err error) {
	if d.proxy == nil || proto != "tcp" {
		return nil, false, nil
	}
	to := netip.AddrPortFrom(dest.addr, dest.port).String()
	if dest.name != "" {
		to = fmt.Sprintf("%s:%d", dest.name, dest.port)
	}
	server, err := d.proxy.server(to, d.proxy.NoProxy)
	if err != nil || server == nil {
		return nil, false, err
	}
	if dest.name != "" {
		if to, err = d.proxied(ctx, proto, dest); err != nil {
			return nil, true, err
		}
	}
	c, err = d.reach(ctx, server)
	if err != nil {
		return nil, true, fmt.Errorf("the proxy: %w", err)
	}
	if err := d.ask(ctx, c.(*net.TCPConn), server, to); err != nil {
		return nil, true, errors.Join(err, c.Close())
	}
	return c, true, nil
}

// proxied returns what the proxy is asked for: the name, or the address that the
// policy pins it to.
func (d *dialer) proxied(ctx context.Context, proto string, dest destination) (string, error) {
	_, pinned := d.resolve[dest.name]
	if !pinned && !d.mayBePrivate(dest.name) && local(dest.name) {
		return "", errInside
	}
	name := fmt.Sprintf("%s:%d", dest.name, dest.port)
	if !pinned && time.Now().UnixNano() < d.untold.Load() {
		return name, nil
	}
	ctx, cancel := context.WithTimeout(ctx, tellLimit)
	defer cancel()
	addrs, err := d.addresses(ctx, proto, dest)
	switch {
	case errors.Is(err, errPrivate):
		return "", err
	case pinned:
		return netip.AddrPortFrom(addrs[0], dest.port).String(), err
	case err != nil && ctx.Err() != nil:
		d.untold.Store(time.Now().Add(untoldFor).UnixNano())
	}
	return name, nil // a host behind a proxy often finds no public name
}

// local reports whether a name is one of a private network's: without a dot, or
// below a domain that is never public.
func local(name string) bool {
	i := strings.LastIndexByte(name, '.')
	return i < 0 || slices.Contains(localDomains, name[i+1:])
}

// reach connects to the proxy, which is the caller's own choice: its address is
// not judged.
func (d *dialer) reach(ctx context.Context, server *url.URL) (net.Conn, error) {
	return d.dialHost(ctx, server.Host)
}

// refusal is an answer of the proxy other than 2xx. Its words are not repeated.
type refusal int

func (r refusal) Error() string {
	switch r {
	case 403:
		return "the proxy does not allow it (403)"
	case 407:
		return "the proxy asks for credentials (407)"
	case 502, 503, 504:
		return fmt.Sprintf("the proxy cannot reach it (%d)", int(r))
	}
	return fmt.Sprintf("the proxy answers %d", int(r))
}

// maxHead bounds a proxy's answer.
const maxHead = 16 << 10

// ask makes the connection to the proxy one to the destination (RFC 9110, section 9.3.6).
func (d *dialer) ask(ctx context.Context, c *net.TCPConn, server *url.URL, to string) error {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) }) // what waits then ends
	defer stop()
	head := "CONNECT " + to + " HTTP/1.1\r\nHost: " + to + "\r\n"
	if server.User != nil {
		password, _ := server.User.Password()
		head += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(server.User.Username()+":"+password)) + "\r\n"
	}
	if _, err := io.WriteString(c, head+"\r\n"); err != nil {
		return err
	}
	answer, err := readHead(c)
	if err != nil {
		return fmt.Errorf("the proxy's answer: %w", err)
	}
	var minor, status int
	if _, err := fmt.Sscanf(string(answer), "HTTP/1.%d %d", &minor, &status); err != nil {
		return errors.New("the proxy does not speak HTTP")
	}
	if status < 200 || status > 299 {
		return refusal(status)
	}
	return nil
}

// readHead reads up to the empty line and not a byte more: what follows is the
// destination's.
func readHead(c *net.TCPConn) ([]byte, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var head []byte
	buf := make([]byte, 1024)
	for len(head) < maxHead {
		var n int
		rerr := rc.Read(func(fd uintptr) bool {
			n, _, err = unix.Recvfrom(int(fd), buf, unix.MSG_PEEK)
			return err != unix.EAGAIN
		})
		if err = errors.Join(rerr, err); err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, io.ErrUnexpectedEOF
		}
		had := len(head)
		head = append(head, buf[:n]...)
		end := bytes.Index(head, []byte("\r\n\r\n"))
		if end >= 0 {
			head = head[:end+4]
		}
		if _, err := io.ReadFull(c, buf[:len(head)-had]); err != nil {
			return nil, err
		}
		if end >= 0 {
			return head, nil
		}
	}
	return nil, errors.New("it is too long")
}
