package netguard

import (
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

// The resolver of the namespace. It forwards nothing: an allowed name has its
// synthetic address, everything else does not exist. So no query, however it is
// named, carries anything out, and answers never have to be truncated: each
// holds one record at most.

// answerTTL is in seconds. Addresses do not change during a run.
const answerTTL = 60

// maxUDPAnswer is what is advertised to EDNS clients (DNS flag day 2020).
const maxUDPAnswer = 1232

// query is what a question asked for and how it was judged.
type query struct {
	name    string // as asked, lower case, without the root dot
	allowed bool
	full    bool       // its wildcard has no address left
	addr    netip.Addr // the answer, if it is one
	quiet   bool       // about the namespace itself: no one needs to know
}

// answer returns the reply to one DNS message, nil where it deserves none, and
// what it asked for; ok is false where there was no question to judge.
func (d *directory) answer(packet []byte, v6 bool) (reply []byte, q query, ok bool) {
	var p dnsmessage.Parser
	h, err := p.Start(packet)
	if err != nil || h.Response {
		return nil, q, false
	}
	header := dnsmessage.Header{
		ID: h.ID, Response: true, OpCode: h.OpCode, RecursionDesired: h.RecursionDesired, RecursionAvailable: true, Authoritative: true,
	}
	if h.OpCode != 0 {
		header.RCode = dnsmessage.RCodeNotImplemented
		return build(header, nil, nil, false), q, false
	}
	questions, err := p.AllQuestions()
	if err != nil || len(questions) != 1 {
		header.RCode = dnsmessage.RCodeFormatError
		return build(header, nil, nil, false), q, false
	}
	question := questions[0]
	edns := hasEDNS(&p)
	if question.Class != dnsmessage.ClassINET {
		header.RCode = dnsmessage.RCodeRefused
		return build(header, &question, nil, edns), q, false
	}
	q = d.judge(question, v6)
	switch {
	case q.full:
		header.RCode = dnsmessage.RCodeServerFailure
	case !q.allowed:
		header.RCode = dnsmessage.RCodeNameError
	}
	return build(header, &question, resource(question, q.addr), edns), q, true
}

// judge decides a question. An allowed name has an A and an AAAA record and
// nothing else.
func (d *directory) judge(question dnsmessage.Question, v6 bool) query {
	q := query{name: strings.TrimSuffix(lowerASCII(question.Name.String()), ".")}
	if addr, local := ownName(q.name, question.Type); local {
		q.allowed, q.quiet, q.addr = true, true, addr
		return q
	}
	index, allowed, err := d.index(q.name)
	q.allowed, q.full = allowed && err == nil, err != nil
	switch {
	case !q.allowed:
	case question.Type == dnsmessage.TypeA:
		q.addr = synthetic4(index)
	case question.Type == dnsmessage.TypeAAAA && v6:
		q.addr = synthetic6(index)
	}
	return q
}

// ownName answers for localhost, which is never anybody else (RFC 6761, 6.3).
func ownName(name string, t dnsmessage.Type) (addr netip.Addr, local bool) {
	if name != "localhost" && !strings.HasSuffix(name, ".localhost") {
		return addr, false
	}
	switch t {
	case dnsmessage.TypeA:
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case dnsmessage.TypeAAAA:
		addr = netip.IPv6Loopback()
	}
	return addr, true
}

// lowerASCII leaves bytes above 0x7f as they are: they are in no allowed name.
func lowerASCII(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// hasEDNS looks for an OPT record (RFC 6891); what cannot be parsed has none.
func hasEDNS(p *dnsmessage.Parser) bool {
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return false
	}
	for {
		h, err := p.AdditionalHeader()
		if err != nil {
			return false
		}
		if h.Type == dnsmessage.TypeOPT {
			return true
		}
		if p.SkipAdditional() != nil {
			return false
		}
	}
}

func resource(q dnsmessage.Question, addr netip.Addr) *dnsmessage.Resource {
	if !addr.IsValid() {
		return nil
	}
	r := &dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: answerTTL}}
	if addr.Is4() {
		r.Body = &dnsmessage.AResource{A: addr.As4()}
	} else {
		r.Body = &dnsmessage.AAAAResource{AAAA: addr.As16()}
	}
	return r
}

// build packs a reply; nil where a hostile question cannot be packed again.
func build(h dnsmessage.Header, q *dnsmessage.Question, r *dnsmessage.Resource, edns bool) []byte {
	m := dnsmessage.Message{Header: h}
	if q != nil {
		m.Questions = []dnsmessage.Question{*q}
	}
	if r != nil {
		m.Answers = []dnsmessage.Resource{*r}
	}
	if edns {
		var opt dnsmessage.ResourceHeader
		if opt.SetEDNS0(maxUDPAnswer, dnsmessage.RCodeSuccess, false) != nil {
			return nil
		}
		m.Additionals = []dnsmessage.Resource{{Header: opt, Body: &dnsmessage.OPTResource{}}}
	}
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}
