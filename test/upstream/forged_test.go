// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// forged is the address in everything that an attacker sends.
func forged() netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, 66}) }

// victimName is a name that the attacker wants to have.
const victimName = "www.bank.test."

// An attacker sends forged answers to the sockets of an agent. It is better off than a real one: it sees the queries.
type attacker struct {
	otherPort    *net.UDPConn // another port of the upstream's address
	otherAddress *net.UDPConn // the upstream's port at another address
	queries      atomic.Int64
	sent         [kinds]atomic.Int64
}

// The kinds of forgeries. Those before fromElsewhere come from where the query went.
const (
	otherID          = iota
	otherName        // of the same length
	otherType        // AAAA
	otherClass       // CH
	noResponse       // QR=0
	otherOpcode      // an answer to an update
	noQuestion       // nothing but records
	truncatedReply   // in the middle of the record
	fromOtherPort    // from another port
	fromOtherAddress // from another address
	otherCase        // upper case for lower case and the reverse; for every tenth query only
	kinds
)

// forge makes a forgery of one kind for a query.
func forge(kind int, q []byte) []byte {
	const record = 16 // bytes after the question
	r := upstreamtest.Forged(q)
	end := len(r) - record
	switch kind {
	case otherID:
		r[1] ^= byte(1 + rand.IntN(255))
		r[0] = byte(rand.IntN(256))
	case otherName:
		r[headerLen+1]++
	case otherType:
		r[end-3] = byte(dns.TypeAAAA)
	case otherClass:
		r[end-1] = dns.ClassCHAOS
	case otherCase:
		for i := headerLen; i < end-5; i++ {
			if c := r[i] | 0x20; c >= 'a' && c <= 'z' {
				r[i] ^= 0x20
			}
		}
	case noResponse:
		r[2] &^= 0x80
	case otherOpcode:
		r[2] |= dns.OpcodeUpdate << 3
	case noQuestion:
		r[5] = 0
		r = append(r[:headerLen], r[end:]...)
	case truncatedReply:
		r = r[:len(r)-2]
	}
	return r
}

// attack returns n forgeries for a query, of each kind in turn. Those from elsewhere it sends itself.
func (a *attacker) attack(n int, q *upstreamtest.Query, number int) (list []upstreamtest.Raw) {
	for i := range n {
		kind := i % otherCase
		if i == 0 && number%10 == 0 {
			kind = otherCase
		}
		a.sent[kind].Add(1)
		switch kind {
		case fromOtherPort:
			_, _ = a.otherPort.WriteToUDPAddrPort(forge(kind, q.Raw), q.From)
		case fromOtherAddress:
			_, _ = a.otherAddress.WriteToUDPAddrPort(forge(kind, q.Raw), q.From)
		default:
			list = append(list, func(q []byte) []byte { return forge(kind, q) })
		}
	}
	return list
}

// poisoned is the true answer to a query, with records beside it that are not the server's to give.
func poisoned(q []byte) []byte {
	var m dns.Msg
	if m.Unpack(q) != nil || len(m.Question) != 1 {
		return nil
	}
	name := m.Question[0].Name
	a, ok := addrInName(name)
	if !ok { // the bank's own server
		a = netip.AddrFrom4([4]byte{192, 0, 2, 7})
	}
	r := new(dns.Msg).SetReply(&m)
	record := func(text string) dns.RR {
		rr, err := dns.NewRR(text)
		if err != nil {
			panic(err) // the name was parsed already
		}
		return rr
	}
	r.Answer = []dns.RR{record(name + " 300 IN A " + a.String()), record(victimName + " 300 IN A " + forged().String())}
	r.Ns = []dns.RR{record("bank.test. 300 IN NS " + victimName), record(". 300 IN NS " + victimName)}
	r.Extra = []dns.RR{record(victimName + " 300 IN A " + forged().String())}
	out, _ := r.Pack()
	return out
}

// TestForgedReplies surrounds the true answers with forged ones. No client may see one of these, now or later.
func TestForgedReplies(t *testing.T) {
	t.Parallel()
	const each = 100 // half before the true answer, half behind it
	var evil attacker
	listen := func(addr string) *net.UDPConn {
		conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
		assert.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	evil.otherPort = listen("127.0.0.1:0")
	server := upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
		if q.Network != "udp" {
			return upstreamtest.Action{Raw: []upstreamtest.Raw{poisoned}}
		}
		n := int(evil.queries.Add(1))
		return upstreamtest.Action{Raw: slices.Concat(evil.attack(each/2, &q, n), []upstreamtest.Raw{poisoned}, evil.attack(each/2, &q, n))}
	}).Listen(t)
	evil.otherAddress = listen(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.66"), server.Port()).String())
	a := start(t, settings{rest: fmt.Sprintf("forward: [{zone: ., to: [%q], case: on}]\n", server)})

	rate, queries := proctest.OrdinaryOrSoak(200, 500), proctest.OrdinaryOrSoak(1000, 10_000)
	l := startLoad(t, loadOptions{
		addr: a.settings.listen, dial: a.settings.dial, rate: rate, suffix: "real.test",
		length: time.Duration(queries) * time.Second / time.Duration(rate),
	})
	l.finish()
	r := l.all()
	if r.by[ownAddr()] != r.asked {
		t.Errorf("%s; addresses %v, want the true one for each; /status: %+v", r, r.by, a.upstream(t, server.String()))
	}
	if n := l.unexpected.Load(); n > 0 {
		t.Errorf("%d answers that belong to no query", n)
	}
	// What came beside the answers was not kept, and comes from its own server. Its answer is forged at too.
	for range 2 {
		if reply, _ := a.ask(t, victimName); addressOf(reply) != "192.0.2.7" {
			t.Errorf("%s has the address %q, want the true one", victimName, addressOf(reply))
		}
	}
	all, near := int64(0), int64(0)
	for kind := range evil.sent {
		all += evil.sent[kind].Load()
		if kind < fromOtherPort {
			near += evil.sent[kind].Load()
		}
	}
	failures := a.upstream(t, server.String()).Failures
	counted := int64(failures["mismatch"] + failures["malformed"])
	tries := int64(a.upstreamQueries(t))
	proctest.Figure(t, "%s forged replies of %d kinds to %s queries: %d accepted, %s counted; %s", nodetest.Thousands(int(all)), int(kinds),
		nodetest.Thousands(int(tries)), r.by[forged()], nodetest.Thousands(int(counted)), r)
	// Half of them come behind the answer, where a socket may be closed already.
	if counted < near/4 {
		t.Errorf("%d forged replies were counted, want most of %d", counted, near)
	}
	if tries > int64(queries)*2 {
		t.Errorf("%d tries for %d queries, want about one for each", tries, queries)
	}
	if strings.Contains(a.Stderr.String(), "level=ERROR") {
		t.Error("the agent logged errors")
	}
}
