// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// A FallbackState says whether pods would get answers without the agent.
type FallbackState string

// The states.
const (
	FallbackWorks      FallbackState = "works"      // queries went where those of pods would go, and all were answered
	FallbackBroken     FallbackState = "broken"     // two tests in a row failed
	FallbackUnverified FallbackState = "unverified" // it was not tested, or the tests do not prove that pods get answers
)

// A FallbackResult is the state of the fallback of one address.
type FallbackResult struct {
	State FallbackState
	Why   string // a clause; empty if it works
}

const (
	testTimeout = 2 * time.Second // limit of one test; over UDP a query is repeated after half of it
	maxNamed    = 3               // endpoints that a result names
	headerSize  = 12              // of a DNS message, in bytes
	// maxTestReply is the maximum size of a reply over TCP in bytes. Over UDP what is longer is cut, and only its beginning is read.
	maxTestReply = 4096
)

// A Tester tests the fallback of an address with two queries over one socket, for the [TestNames]. Both take the same way, because
// conntrack knows them as one connection.
type Tester struct {
	Domain string // the cluster domain, absolute

	// Dial connects to addr over a socket with the mark; 0: without one. Nil: [DialWithMark], which needs CAP_NET_ADMIN.
	Dial func(ctx context.Context, network string, addr netip.AddrPort, mark uint32) (net.Conn, error)
}

// TestNames returns the names that a Tester asks for. To self, in class CH and of type TXT, an agent of this node replies with its token.
// It is below the cluster domain, so that a DNS server of the cluster replies at once: CoreDNS would forward [SelfName]. Every cluster
// has the other name.
func TestNames(clusterDomain string) (self, name string) {
	return SelfName + clusterDomain, "kubernetes.default.svc." + clusterDomain
}

// Test tests the fallback of one lease of r. The queries past the lease, over UDP and TCP, test the rules: they go to one of the endpoints,
// which the rules choose at random. Unless the data plane is the fallback, each endpoint of the family gets queries of its own too, over UDP and without the
// rules. It takes two seconds at most.
func (t *Tester) Test(ctx context.Context, r *rules.Rules, l rules.Lease) FallbackResult {
	part, mark := r.Family(l.Key.Is6()), uint32(rules.TestMark)
	if !r.FallsBack() {
		part.Fallback, mark = nil, rules.Mark
	} else if len(part.Fallback) == 0 {
		return FallbackResult{FallbackUnverified, "there is no fallback"}
	}
	ctx, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	to := netip.AddrPortFrom(l.Key, r.Port)
	var group sync.WaitGroup
	var udp, tcp error
	direct := make([]error, len(part.Fallback))
	for i, f := range part.Fallback {
		group.Go(func() { direct[i] = t.ask(ctx, "udp", f, 0) })
	}
	group.Go(func() { tcp = t.ask(ctx, "tcp", to, mark) })
	udp = t.ask(ctx, "udp", to, mark)
	group.Wait()
	return conclude(part.Fallback, direct, udp, tcp)
}

// conclude returns what the errors mean: those of the endpoints, and of the queries past the lease.
func conclude(endpoints []netip.AddrPort, direct []error, udp, tcp error) FallbackResult {
	var failed []string
	var doubt error
	for i, err := range direct {
		switch {
		case errors.Is(err, errUnproven):
			doubt = err
		case err != nil:
			failed = append(failed, fmt.Sprintf("%s: %s", endpoints[i], clause(err)))
		}
	}
	if n := len(failed); n > 0 {
		more := ""
		if n > maxNamed {
			more = fmt.Sprintf(" and %d more", n-maxNamed)
		}
		return FallbackResult{
			FallbackBroken,
			fmt.Sprintf("%d of %d endpoints fail: %s%s", n, len(direct), strings.Join(failed[:min(n, maxNamed)], "; "), more),
		}
	}
	for _, path := range []struct {
		network string
		err     error
	}{{"UDP", udp}, {"TCP", tcp}} {
		switch {
		case errors.Is(path.err, errUnproven):
			doubt = path.err
		case path.err != nil && len(direct) > 0:
			return FallbackResult{FallbackBroken, fmt.Sprintf("the endpoints answer, but not a query past the lease over %s: %s", path.network, clause(path.err))}
		case path.err != nil:
			return FallbackResult{FallbackBroken, fmt.Sprintf("a query past the lease over %s: %s", path.network, clause(path.err))}
		}
	}
	if doubt != nil {
		return FallbackResult{FallbackUnverified, doubt.Error()}
	}
	return FallbackResult{State: FallbackWorks}
}

var (
	errUnproven = errors.New("unproven") // a failure that does not mean that the fallback fails
	errLoop     = errors.New("an agent of this node answers instead of the fallback")
	errNoReply  = fmt.Errorf("no reply within %s", testTimeout)
)

// unproven returns an errUnproven whose text is the clause.
func unproven(clause string) error { return unprovenError(clause) }

type unprovenError string

func (e unprovenError) Error() string      { return string(e) }
func (unprovenError) Is(target error) bool { return target == errUnproven }

// clause describes an error without what the result already names.
func clause(err error) string {
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return number.Error()
	}
	return err.Error()
}

// ask sends both queries over one socket and returns nil once both have the right reply.
func (t *Tester) ask(ctx context.Context, network string, to netip.AddrPort, mark uint32) error {
	dial := t.Dial
	if dial == nil {
		dial = DialWithMark
	}
	conn, err := dial(ctx, network, to, mark)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return errNoReply
	case errors.Is(err, errNoMark), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return unproven("it cannot be tested: " + clause(err))
	default:
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends all calls that wait on it
	defer func() {
		stop()
		_ = conn.Close()
	}()
	x, err := newExchange(t.Domain)
	if err != nil {
		return unproven("it cannot be tested: " + err.Error())
	}
	messages := io.ReadWriter(conn)
	if network == "tcp" {
		messages = &dns.Conn{Conn: conn} // adds and reads the length of each message
	} else {
		again := time.AfterFunc(testTimeout/2, func() { _ = x.send(conn) })
		defer again.Stop()
	}
	if err := x.send(messages); err != nil {
		return err
	}
	buf := make([]byte, maxTestReply)
	for !x.done() {
		n, err := messages.Read(buf)
		switch {
		case err == nil:
		case x.answered && (ctx.Err() != nil || errors.Is(err, io.EOF)):
			return unproven("it does not reply to a query for " + SelfName + t.Domain + ", which tells it from an agent of this node")
		case ctx.Err() != nil:
			return errNoReply
		case errors.Is(err, io.EOF):
			return errors.New("the session ended without a reply")
		default:
			return err
		}
		if err := x.receive(buf[:n]); err != nil {
			return err
		}
	}
	return x.doubt
}

// An exchange is the state of the two queries of one socket.
type exchange struct {
	self, name []byte // the queries; their IDs differ
	refused    bool   // the reply to self is not an agent's
	answered   bool   // name has a reply
	doubt      error  // why that reply proves little; nil: it proves that the server works
}

func newExchange(domain string) (*exchange, error) {
	self, name := TestNames(domain)
	id := uint16(rand.Uint32()) //nolint:gosec // truncated
	first := &dns.Msg{MsgHdr: dns.MsgHdr{Id: id}, Question: []dns.Question{{Name: self, Qtype: dns.TypeTXT, Qclass: dns.ClassCHAOS}}}
	second := &dns.Msg{
		MsgHdr:   dns.MsgHdr{Id: id + 1, RecursionDesired: true},
		Question: []dns.Question{{Name: name, Qtype: dns.TypeA, Qclass: dns.ClassINET}},
	}
	x := new(exchange)
	var err, failed error
	x.self, err = first.Pack()
	x.name, failed = second.Pack()
	return x, errors.Join(err, failed)
}

func (x *exchange) send(w io.Writer) error {
	for _, q := range [][]byte{x.self, x.name} {
		if _, err := w.Write(q); err != nil {
			return err
		}
	}
	return nil
}

func (x *exchange) done() bool { return x.refused && x.answered }

// receive takes a message. It ignores what is no reply to a query of this exchange, and returns why a reply means that the fallback fails.
func (x *exchange) receive(m []byte) error {
	switch {
	case isReply(m, x.self):
		if isAgent(m) {
			return errLoop
		}
		x.refused = true
	case isReply(m, x.name):
		switch rcode := int(m[3] & 0xf); rcode {
		case dns.RcodeSuccess:
		case dns.RcodeNameError:
			q := new(dns.Msg)
			_ = q.Unpack(x.name) // this process packed it
			x.doubt = unproven("it replies that there is no name " + q.Question[0].Name)
		default:
			return fmt.Errorf("replies with %s", rcodeName(rcode))
		}
		x.answered = true
	}
	return nil
}

// isReply reports whether m is a reply to the query q. An error may come without the question, but not the one about its name.
func isReply(m, q []byte) bool {
	const response, opcode, rcode = 0x80, 0x78, 0x0f // of the bytes 2 and 3
	if len(m) < headerSize || m[0] != q[0] || m[1] != q[1] || m[2]&response == 0 || m[2]&opcode != 0 {
		return false
	}
	if len(m) == headerSize {
		return m[3]&rcode != dns.RcodeSuccess && m[3]&rcode != dns.RcodeNameError
	}
	return m[4] == 0 && m[5] == 1 && len(m) >= len(q) && bytes.EqualFold(m[headerSize:len(q)], q[headerSize:])
}

// isAgent reports whether m, a reply to self, is an agent's. An agent replies so only to its own node.
func isAgent(m []byte) bool {
	a := new(dns.Msg)
	if m[3]&0xf != 0 || a.Unpack(m) != nil {
		return false
	}
	return slices.ContainsFunc(a.Answer, func(rr dns.RR) bool {
		h := rr.Header()
		return h.Rrtype == dns.TypeTXT && h.Class == dns.ClassCHAOS && h.Ttl == 0
	})
}

func rcodeName(rcode int) string {
	if name, ok := dns.RcodeToString[rcode]; ok {
		return name
	}
	return fmt.Sprintf("RCODE %d", rcode)
}

// DialWithMark connects to addr over a socket with the mark; 0: without one.
func DialWithMark(ctx context.Context, network string, addr netip.AddrPort, mark uint32) (net.Conn, error) {
	var d net.Dialer
	if mark != 0 {
		d.Control = setMark(mark)
	}
	return d.DialContext(ctx, network, addr.String())
}
