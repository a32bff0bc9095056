// SPDX-License-Identifier: Apache-2.0

package upstreamtest

import (
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// A Query is what the server was asked.
type Query struct {
	Name    string // lower case, with a dot at the end; empty: not to be parsed
	Type    uint16
	ID      uint16
	EDNS    bool           // has an OPT record
	Network string         // "udp", "tcp", "tls" or "https"
	From    netip.AddrPort // the client's socket; not valid in memory
	Conn    int            // number of the TCP connection, from 1, whatever it carries; 0 over UDP
	Raw     []byte         // the message as it came; not to be changed
	Probe   bool           // no client's: it shows whether the server is back, or leads back
	HTTP    *http.Request  // over HTTPS; nil: over something else
}

// An Action is how the server treats a query. The zero value answers NOERROR
// without records.
type Action struct {
	Delay    time.Duration // before anything else
	Drop     bool          // say nothing
	Close    bool          // TCP: hang up, after the messages if there are any in Raw. HTTPS: answer, and take no more requests
	Reset    bool          // TCP: hang up with a RST
	Rcode    int
	Records  []string // answer section, in the notation of zone files
	Truncate bool     // over UDP: TC=1 and no records
	NoEDNS   bool     // no OPT record in the answer, as from a server that knows none
	Raw      []Raw    // messages to send in place of the answer
	Split    int      // TCP: octets in one write; 0: the whole frame

	Status      int    // HTTPS: of the response; 0: 200
	ContentType string // HTTPS: of the response; empty: what it should be
	Age         int    // HTTPS: of the response, in seconds; 0: none
}

// Raw is a message made from the query, to be sent as it is.
type Raw func(q []byte) []byte

// A Script decides what happens to a query. It is called from many goroutines.
type Script func(Query) Action

// Always is the script of a server that knows one thing only.
func Always(a Action) Script { return func(Query) Action { return a } }

// Sequence takes the actions one after the other. The last one stays.
func Sequence(actions ...Action) Script {
	var asked atomic.Int64
	return func(q Query) Action {
		n := asked.Load()
		if !q.Probe { // which is treated like the query before it
			n = asked.Add(1)
		}
		return actions[min(max(int(n), 1), len(actions))-1]
	}
}

// By gives UDP, and TCP with what runs over it, a script each.
func By(udp, tcp Script) Script {
	return func(q Query) Action {
		if q.Network != "udp" {
			return tcp(q)
		}
		return udp(q)
	}
}

// Zone answers from records in the notation of zone files: those of the name
// and type asked for, or the name's CNAME; NXDOMAIN for names that have none.
// It panics on a record it cannot read.
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

// answer builds the answer to q. It is nil when q cannot be read.
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

// parse reads what a script may want to know of a query.
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
