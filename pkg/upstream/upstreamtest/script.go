// SPDX-License-Identifier: Apache-2.0

package upstreamtest

import (
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// A Query is a query that the server received.
type Query struct {
	Name    string // lower case, with a dot at the end; empty: unparsable
	Type    uint16
	ID      uint16
	EDNS    bool           // has an OPT record
	Network string         // "udp", "tcp", "tls" or "https"
	From    netip.AddrPort // address of the client; invalid in memory
	Conn    int            // number of the TCP connection, from 1; 0 over UDP
	Raw     []byte         // the message as received; must not be changed
	Probe   bool           // not a client's: a health or loop probe
	HTTP    *http.Request  // over HTTPS; nil: other transports
}

// An Action is how the server treats a query. The zero value answers NOERROR without records.
type Action struct {
	Delay    time.Duration // before anything else
	Drop     bool          // do not answer
	Close    bool          // TCP: close, after the messages in Raw, if any. HTTPS: answer, and send GOAWAY
	Reset    bool          // TCP: close with RST
	Rcode    int
	Records  []string // answer section, in zone file format
	Truncate bool     // over UDP: TC=1 and no records
	NoEDNS   bool     // no OPT record in the answer, like a server without EDNS
	Raw      []Raw    // messages to send instead of the answer
	Split    int      // TCP: bytes per write; 0: the whole frame

	Status      int    // HTTPS: response status; 0: 200
	ContentType string // HTTPS: response content type; empty: the right one
	Age         int    // HTTPS: Age of the response in seconds; 0: none
}

// Raw builds a message from the query; it is sent unchanged.
type Raw func(q []byte) []byte

// A Script selects the action for a query. It must be safe for concurrent use.
type Script func(Query) Action

// Always returns a script with one action.
func Always(a Action) Script { return func(Query) Action { return a } }

// Sequence returns a script that takes the actions one after the other. The last one repeats.
func Sequence(actions ...Action) Script {
	var asked atomic.Int64
	return func(q Query) Action {
		n := asked.Load()
		if !q.Probe { // a probe is treated like the query before it
			n = asked.Add(1)
		}
		return actions[min(max(int(n), 1), len(actions))-1]
	}
}

// By returns a script that treats UDP and the other transports differently.
func By(udp, tcp Script) Script {
	return func(q Query) Action {
		if q.Network != "udp" {
			return tcp(q)
		}
		return udp(q)
	}
}

// Zone returns a script that answers from records in zone file format: with the records of the name and type, or with
// the CNAME of the name. Other names are NXDOMAIN. It panics if a record is invalid.
func Zone(records ...string) Script {
	type record struct {
		name string
		kind uint16
		text string
	}
	zone := make([]record, 0, len(records))
	for _, text := range records {
		rr, err := dns.NewRR(text)
		if err != nil {
			panic("upstreamtest: " + err.Error())
		}
		zone = append(zone, record{strings.ToLower(rr.Header().Name), rr.Header().Rrtype, text})
	}
	return func(q Query) Action {
		a := Action{Rcode: dns.RcodeNameError}
		for _, rr := range zone {
			if rr.name != q.Name {
				continue
			}
			a.Rcode = dns.RcodeSuccess
			if rr.kind == q.Type || rr.kind == dns.TypeCNAME {
				a.Records = append(a.Records, rr.text)
			}
		}
		return a
	}
}

// answer builds the answer to q. It is nil if q cannot be parsed.
func (a *Action) answer(q Query) []byte {
	var m, r dns.Msg
	if m.Unpack(q.Raw) != nil {
		return nil
	}
	r.SetRcode(&m, a.Rcode)
	r.RecursionAvailable = true
	r.Compress = true
	for _, text := range a.Records {
		rr, err := dns.NewRR(text)
		if err != nil {
			panic("upstreamtest: " + err.Error())
		}
		r.Answer = append(r.Answer, rr)
	}
	if a.Truncate && q.Network == "udp" {
		r.Truncated, r.Answer = true, nil
	}
	if q.EDNS && !a.NoEDNS {
		r.SetEdns0(dns.DefaultMsgSize, false)
	}
	out, err := r.Pack()
	if err != nil {
		panic("upstreamtest: " + err.Error())
	}
	return out
}

// parse returns what a script may use of a query.
func parse(raw []byte) Query {
	q := Query{Raw: raw}
	var m dns.Msg
	if m.Unpack(raw) == nil && len(m.Question) == 1 {
		q.Name = strings.ToLower(m.Question[0].Name)
		q.Type = m.Question[0].Qtype
		q.ID = m.Id
		q.EDNS = m.IsEdns0() != nil
		q.Probe = q.Name == "." || strings.Contains(q.Name, ".loop.node-cache.")
	}
	return q
}

// Question builds a query for the addresses of a name as the resolver sends it: RD, and EDNS with 1232 bytes.
func Question(tb testing.TB, name string) []byte {
	tb.Helper()
	q, err := new(dns.Msg).SetQuestion(name, dns.TypeA).SetEdns0(1232, false).Pack()
	if err != nil {
		tb.Fatal(err)
	}
	return q
}
