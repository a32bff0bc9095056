// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// randomCase runs a pool with 0x20 and servers over UDP in the harness.
func (h *harness) randomCase(t *testing.T, addrs ...netip.AddrPort) *upstream.Pool {
	t.Helper()
	cfg := upstream.Config{Dial: h.Dial, RandomCase: true, Policy: upstream.Sequential}
	for _, addr := range addrs {
		cfg.Targets = append(cfg.Targets, target("udp", addr))
	}
	p := newPool(t, cfg)
	run(t, p)
	return p
}

// spelling returns the name of a query as it was sent.
func spelling(q upstreamtest.Query) string {
	var m dns.Msg
	if m.Unpack(q.Raw) != nil || len(m.Question) != 1 {
		return ""
	}
	return m.Question[0].Name
}

// manyLetters is a name that random case hardly ever leaves in lower case: of ten letters it does so once in 1,024 queries.
const manyLetters = "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx.example."

// isLower reports whether the name of a query was sent in lower case.
func isLower(q upstreamtest.Query) bool { return spelling(q) == q.Name }

// names answers the names with an address, if it finds them by exactly these bytes. To others it does as other says.
func names(other upstreamtest.Script, list ...string) upstreamtest.Script {
	return func(q upstreamtest.Query) upstreamtest.Action {
		name := spelling(q)
		if slices.Contains(list, name) {
			return upstreamtest.Action{Records: []string{name + " 60 IN A 192.0.2.10"}}
		}
		return other(q)
	}
}

// inLowerCase changes an answer: its question is in lower case.
func inLowerCase(address string) upstreamtest.Raw {
	return func(q []byte) []byte {
		var m dns.Msg
		if err := m.Unpack(q); err != nil {
			panic(err)
		}
		m.Question[0].Name = strings.ToLower(m.Question[0].Name)
		r := new(dns.Msg).SetReply(&m)
		rr, err := dns.NewRR(m.Question[0].Name + " 60 IN A " + address)
		if err != nil {
			panic(err)
		}
		r.Answer = []dns.RR{rr}
		out, err := r.Pack()
		if err != nil {
			panic(err)
		}
		return out
	}
}

// What servers that do not ignore the case do with names in random case.
func caseFaults() map[string]upstreamtest.Script {
	faults := map[string]upstreamtest.Script{
		"empty":       upstreamtest.Always(upstreamtest.Action{}),
		"bare header": upstreamtest.Always(upstreamtest.Action{Raw: []upstreamtest.Raw{headerAlone}}),
		"silence":     upstreamtest.Always(upstreamtest.Action{Drop: true}),
		"lower case":  upstreamtest.Always(upstreamtest.Action{Raw: []upstreamtest.Raw{inLowerCase("192.0.2.10")}}),
	}
	for _, code := range []int{
		dns.RcodeNameError, dns.RcodeRefused, dns.RcodeServerFailure, dns.RcodeNotImplemented, dns.RcodeFormatError, dns.RcodeNotAuth,
	} {
		faults[dns.RcodeToString[code]] = upstreamtest.Always(rcode(code))
		faults[dns.RcodeToString[code]+" without OPT"] = upstreamtest.Always(upstreamtest.Action{Rcode: code, NoEDNS: true})
	}
	return faults
}

// A server that does not ignore the case gives the right answer to the first query and to all others, whatever it does
// with other spellings. Soon it is asked once for each query, in lower case.
func TestCaseOfNames(t *testing.T) {
	t.Parallel()
	const name = "db.corp.example."
	tcp := map[string]error{"TCP": nil, "no TCP": syscall.ECONNREFUSED, "silent TCP": errNoAnswer}
	for fault, script := range caseFaults() {
		for mode, dialError := range tcp {
			if fault == "silence" && dialError != nil {
				continue // TestCaseSilence
			}
			t.Run(fault+", "+mode, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					h := newHarness()
					script := names(upstreamtest.By(script, upstreamtest.Always(rcode(dns.RcodeServerFailure))), name)
					h.a.SetScript(script)
					h.dialTCP = dialError
					p := h.randomCase(t, addrA)
					for i := range 12 {
						start := time.Now()
						if got, took := askName(t, p, name), time.Since(start); got != "192.0.2.10" || took > 1500*time.Millisecond {
							t.Errorf("query %d: %q after %v, want 192.0.2.10 within 1.5 s", i, got, took)
						}
					}
					want := "no-case:corp.example."
					if fault == "lower case" {
						want = "no-case"
					}
					if list := p.Stats().Servers[0].Limitations; !slices.Contains(list, want) {
						t.Errorf("limitations %q, want %q", list, want)
					}
					before := len(h.a.Queries())
					start := time.Now()
					assert.Equal(t, "answer when it is known", "192.0.2.10", askName(t, p, name))
					network := "udp"
					if dialError == nil {
						network = "tcp"
					}
					if list := h.a.Queries()[before:]; len(list) != 1 || !isLower(list[0]) || list[0].Network != network || time.Since(start) != 0 {
						t.Errorf("asked %d times in %v, want once in lower case over %s", len(list), time.Since(start), network)
					}
				})
			})
		}
	}
}

// Silence, which a flood can cause, never leads to lower case over UDP.
func TestCaseSilence(t *testing.T) {
	t.Parallel()
	for mode, dialError := range map[string]error{"TCP": nil, "no TCP": syscall.ECONNREFUSED, "silent TCP": errNoAnswer} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHarness()
				h.dialTCP = dialError
				h.a.SetScript(upstreamtest.By(upstreamtest.Always(upstreamtest.Action{Drop: true}), healthy("192.0.2.10")))
				p := h.randomCase(t, addrA)
				want := "timeout"
				if dialError == nil {
					want = "192.0.2.10"
				}
				for range 5 {
					assert.Equal(t, "answer", want, askName(t, p, manyLetters))
					time.Sleep(time.Minute)
				}
				for _, q := range h.a.Queries() {
					if q.Network == "udp" && isLower(q) {
						t.Fatal("asked in lower case over UDP")
					}
				}
			})
		})
	}
}

// A denial that lower case confirms proves nothing about the next name. What one domain shows does not hold for others.
func TestCaseSensitiveDomains(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		denied := upstreamtest.Always(rcode(dns.RcodeNameError))
		h.a.SetScript(func(q upstreamtest.Query) upstreamtest.Action {
			if strings.HasSuffix(q.Name, ".good.example.") || q.Name == "good.example." {
				return upstreamtest.Action{Records: []string{q.Name + " 60 IN A 192.0.2.20"}}
			}
			return names(denied, "db.corp.example.", "corp.example.", "a.b.corp.example.")(q)
		})
		p := h.randomCase(t, addrA)
		for _, step := range []struct{ name, want string }{
			{"www.good.example.", "192.0.2.20"},
			{"good.example.", "192.0.2.20"},
			{"nothing.corp.example.", "empty NXDOMAIN"},
			{"db.corp.example.", "192.0.2.10"},
			{"nothing.corp.example.", "empty NXDOMAIN"},
			{"corp.example.", "192.0.2.10"}, // beside good.example
			{"a.b.corp.example.", "192.0.2.10"},
			{"db.corp.example.", "192.0.2.10"},
			{"www.good.example.", "192.0.2.20"},
		} {
			assert.Equal(t, step.name, step.want, askName(t, p, step.name))
		}
		queries := h.a.Queries()
		if last := queries[len(queries)-1]; isLower(last) {
			t.Errorf("%s was sent in lower case, want random case", last.Name)
		}
		if n := p.Stats().Servers[0].CaseChecks; n != 3 {
			t.Errorf("%d answers were asked for again, want 3: while corp.example and b.corp.example were unknown", n)
		}
	})
}

// Names that do not exist cost an upstream at most a tenth more queries, after a hundred. A name that has an address is
// asked once.
func TestCaseChecksAreBounded(t *testing.T) {
	t.Parallel()
	const flood, good = 1000, 10
	for mode, dialError := range map[string]error{"TCP": nil, "no TCP": syscall.ECONNREFUSED} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHarness()
				h.a.SetScript(upstreamtest.Always(rcode(dns.RcodeNameError)))
				h.dialTCP = dialError
				p := h.randomCase(t, addrA)
				for i := range flood {
					assert.Equal(t, "random name", "empty NXDOMAIN", askName(t, p, fmt.Sprintf("random-%d.x%d.bank.example.", i, i)))
				}
				if n, most := len(h.a.Queries()), flood+100+flood/10+2; n > most {
					t.Errorf("%d queries for %d, want %d at most", n, flood, most)
				}
				before := len(h.a.Queries())
				askName(t, p, "another.bank.example.")
				if last := h.a.Queries()[before]; !isLower(last) || dialError == nil && last.Network != "tcp" {
					t.Errorf("in the flood %q was asked over %s, want lower case over TCP", spelling(last), last.Network)
				}
				// Other queries pay the debt off.
				h.a.SetScript(healthy("192.0.2.10"))
				for range 1000 + good {
					before = len(h.a.Queries())
					assert.Equal(t, "good name", "192.0.2.10", askName(t, p, manyLetters))
				}
				if list := h.a.Queries()[before:]; len(list) != 1 || isLower(list[0]) || list[0].Network != "udp" {
					t.Errorf("after the flood asked %d times, %q over %s, want once in random case over UDP",
						len(list), spelling(list[0]), list[0].Network)
				}
			})
		})
	}
}

// A forger that cannot see the queries gets no weaker query: what it forges in another case leads to TCP, and is forgotten.
func TestCaseForgeries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness()
		forge := false
		h.a.SetScript(upstreamtest.By(func(upstreamtest.Query) upstreamtest.Action {
			if forge {
				return upstreamtest.Action{Raw: []upstreamtest.Raw{inLowerCase("192.0.2.66"), headerAlone, upstreamtest.Forged}}
			}
			return one("192.0.2.10")
		}, healthy("192.0.2.10")))
		p := h.randomCase(t, addrA)
		for i := range 60 {
			forge = i%3 > 0
			assert.Equal(t, fmt.Sprint("answer ", i), "192.0.2.10", askName(t, p, manyLetters))
		}
		for _, q := range h.a.Queries() {
			if q.Network == "udp" && isLower(q) {
				t.Fatal("asked in lower case over UDP")
			}
		}
		if list := p.Stats().Servers[0].Limitations; len(list) > 0 {
			t.Errorf("%q is known, want nothing", list)
		}
	})
}

// Of two servers one compares names byte by byte, and comes first.
func TestCaseOneOfTwo(t *testing.T) {
	t.Parallel()
	for fault, script := range caseFaults() {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHarness()
				h.a.SetScript(names(script, "www.example."))
				h.b.SetScript(healthy("192.0.2.10"))
				p := h.randomCase(t, addrA, addrB)
				for i := range 12 {
					assert.Equal(t, fmt.Sprint("answer ", i), "192.0.2.10", ask(t, p))
				}
			})
		})
	}
}
