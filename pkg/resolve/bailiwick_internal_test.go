// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A reference is the rules of a bailiwick once more, over unpacked records and
// with no thought of cost.
type reference struct {
	m     *dns.Msg
	names []string      // of the chain
	at    map[int]place // places of the records of the answer section
}

// refer gives the records of an answer that stay, or says that it is refused.
func refer(m *dns.Msg) (kept [3][]string, refused bool) {
	ref := &reference{m: m, names: []string{m.Question[0].Name}, at: map[int]place{}}
	if refers(m, m.Answer, m.Ns) {
		return kept, true
	}
	if !ref.follow() {
		return kept, true
	}
	ref.data()
	if lost := len(m.Answer) - len(ref.at); lost > 0 && (m.Rcode == dns.RcodeNameError || ref.beside()) {
		return kept, true
	}
	left := &dns.Msg{}
	for _, i := range ref.ordered() {
		left.Answer = append(left.Answer, m.Answer[i])
	}
	for _, rr := range m.Ns[:min(len(m.Ns), maxAuthority)] {
		if ref.authority(rr) {
			left.Ns = append(left.Ns, rr)
		}
	}
	for _, rr := range m.Extra {
		if ref.additional(rr) {
			left.Extra = append(left.Extra, rr)
		}
	}
	return listed(left), refers(m, left.Answer, left.Ns)
}

// refers reports whether an answer with m's header and these records is a referral.
func refers(m *dns.Msg, an, ns []dns.RR) bool {
	return len(an) == 0 && m.Rcode == dns.RcodeSuccess && !m.Authoritative && has(ns, dns.TypeNS) && !has(ns, dns.TypeSOA)
}

func has(list []dns.RR, rrtype uint16) bool {
	return slices.ContainsFunc(list, func(rr dns.RR) bool { return rr.Header().Rrtype == rrtype })
}

func same(a, b string) bool { return strings.EqualFold(a, b) }

func (ref *reference) last() string { return ref.names[len(ref.names)-1] }

// find gives the first record of the answer section without a place that fits.
func (ref *reference) find(at place, fits func(dns.RR) bool) dns.RR {
	for i, rr := range ref.m.Answer {
		if _, taken := ref.at[i]; !taken && rr.Header().Class == dns.ClassINET && fits(rr) {
			ref.at[i] = at
			return rr
		}
	}
	return nil
}

func (ref *reference) follow() bool {
	aliases := 0
	for _, rr := range ref.m.Answer {
		if t := covers(rr); rr.Header().Class == dns.ClassINET && (t == dns.TypeCNAME || t == dns.TypeDNAME) {
			aliases++
		}
	}
	for at := place(0); ; at += 2 {
		to, final := at+1, ref.m.Question[0].Qtype == dns.TypeCNAME
		if final {
			to = dataPlace
		}
		alias := ref.find(to, func(rr dns.RR) bool {
			_, ok := rr.(*dns.CNAME)
			return ok && same(rr.Header().Name, ref.last())
		})
		if alias != nil {
			ref.find(at, func(rr dns.RR) bool {
				_, ok := rr.(*dns.DNAME)
				return ok && dns.IsSubDomain(rr.Header().Name, ref.last()) && !same(rr.Header().Name, ref.last())
			})
		}
		if alias == nil || final {
			return len(ref.names) <= maxChain+1 && aliases <= maxAliases
		}
		ref.names = append(ref.names, alias.(*dns.CNAME).Target)
	}
}

// covers is the type of a record, or the one that it signs.
func covers(rr dns.RR) uint16 {
	if sig, ok := rr.(*dns.RRSIG); ok {
		return sig.TypeCovered
	}
	return rr.Header().Rrtype
}

func (ref *reference) data() {
	want := ref.m.Question[0].Qtype
	for i, rr := range ref.m.Answer {
		h := rr.Header()
		if _, taken := ref.at[i]; taken || h.Class != dns.ClassINET {
			continue
		}
		_, signature := rr.(*dns.RRSIG)
		if same(h.Name, ref.last()) && (h.Rrtype == want || signature && covers(rr) == want) {
			ref.at[i] = dataPlace
		}
	}
	for i, rr := range ref.m.Answer {
		_, taken := ref.at[i]
		if sig, ok := rr.(*dns.RRSIG); ok && !taken && sig.Hdr.Class == dns.ClassINET && (sig.TypeCovered == dns.TypeCNAME || sig.TypeCovered == dns.TypeDNAME) {
			for j, signed := range ref.m.Answer {
				if at, taken := ref.at[j]; taken && at < dataPlace && signed.Header().Rrtype == sig.TypeCovered && same(signed.Header().Name, sig.Hdr.Name) {
					ref.at[i] = at
					break
				}
			}
		}
	}
}

func (ref *reference) beside() bool {
	return len(ref.at) == 0 && !slices.ContainsFunc(ref.m.Answer, func(rr dns.RR) bool {
		return rr.Header().Class == dns.ClassINET && same(rr.Header().Name, ref.names[0])
	})
}

// ordered is the answer section as it was where aliases stand before what they
// lead to, and in the order of places otherwise.
func (ref *reference) ordered() []int {
	var list, bare []int
	for i, rr := range ref.m.Answer {
		if _, ok := ref.at[i]; ok {
			list = append(list, i)
			if rr.Header().Rrtype != dns.TypeRRSIG {
				bare = append(bare, i)
			}
		}
	}
	byPlace := func(i, j int) int { return int(ref.at[i]) - int(ref.at[j]) }
	if !slices.IsSortedFunc(bare, byPlace) {
		slices.SortStableFunc(list, byPlace)
	}
	return list
}

// inZone reports whether a name of the chain is in the zone.
func (ref *reference) inZone(zone string) bool {
	return slices.ContainsFunc(ref.names, func(name string) bool { return dns.IsSubDomain(zone, name) })
}

func (ref *reference) authority(rr dns.RR) bool {
	if rr.Header().Class != dns.ClassINET {
		return false
	}
	owner := rr.Header().Name
	for _, other := range ref.m.Ns[:min(len(ref.m.Ns), maxAuthority)] {
		h := other.Header()
		zone := h.Name
		sig, signature := other.(*dns.RRSIG)
		switch {
		case h.Class != dns.ClassINET:
			continue
		case h.Rrtype == dns.TypeSOA, h.Rrtype == dns.TypeNS, h.Rrtype == dns.TypeDS:
		case signature && (sig.TypeCovered == dns.TypeNSEC || sig.TypeCovered == dns.TypeNSEC3) && dns.IsSubDomain(sig.SignerName, zone):
			zone = sig.SignerName
		default:
			continue
		}
		if !ref.inZone(zone) {
			continue
		}
		switch covers(rr) {
		case dns.TypeSOA, dns.TypeNS, dns.TypeDS:
			if same(owner, zone) {
				return true
			}
		case dns.TypeNSEC, dns.TypeNSEC3:
			if dns.IsSubDomain(zone, owner) {
				return true
			}
		}
	}
	return false
}

func (ref *reference) additional(rr dns.RR) bool {
	if t := covers(rr); t != dns.TypeA && t != dns.TypeAAAA || rr.Header().Class != dns.ClassINET {
		return false
	}
	for i, data := range ref.m.Answer {
		if ref.at[i] != dataPlace {
			continue
		}
		target := ""
		switch data := data.(type) {
		case *dns.NS:
			target = data.Ns
		case *dns.MX:
			target = data.Mx
		case *dns.SRV:
			target = data.Target
		case *dns.HTTPS:
			if target = data.Target; target == "." {
				target = data.Hdr.Name
			}
		}
		if target != "" && same(target, rr.Header().Name) {
			return true
		}
	}
	return false
}

// invent makes an answer of bytes: of few names and types, so that most of them
// have to do with each other.
func invent(seed []byte) *dns.Msg {
	names := []string{"www.example.", "a.example.", "b.example.", "example.", "c.a.example.", "x.other.", "other.", ".", "WWW.Example.", "A.example."}
	types := []uint16{
		dns.TypeA, dns.TypeCNAME, dns.TypeCNAME, dns.TypeDNAME, dns.TypeMX, dns.TypeSRV, dns.TypeNS, dns.TypeHTTPS, dns.TypeRRSIG, dns.TypeRRSIG,
		dns.TypeSOA, dns.TypeNS, dns.TypeDS, dns.TypeNSEC, dns.TypeTXT, dns.TypeAAAA,
	}
	next := func() int {
		if len(seed) == 0 {
			return 0
		}
		c := seed[0]
		seed = seed[1:]
		return int(c)
	}
	m := new(dns.Msg)
	asked := next()
	slices.Reverse(names[:asked%len(names)+1])
	m.SetQuestion(names[0], types[next()%len(types)])
	m.Response, m.Compress = true, true
	flags := next()
	m.Authoritative = flags&1 != 0
	if flags>>5 == 0 {
		m.Rcode = dns.RcodeNameError
	}
	for range 80 {
		if len(seed) < 4 {
			break
		}
		kind, owner, target, extra := next(), next(), names[next()%len(names)], next()
		if owner > 128 {
			owner = 0 // the name that is asked for as often as not
		}
		h := dns.RR_Header{Name: names[owner%len(names)], Rrtype: types[kind%len(types)], Class: dns.ClassINET, Ttl: uint32(len(seed))}
		if extra>>4 == 15 {
			h.Class = dns.ClassCHAOS
		}
		section := [4]*[]dns.RR{&m.Answer, &m.Answer, &m.Ns, &m.Extra}[kind>>6]
		*section = append(*section, inventData(h, target, types[extra%len(types)]))
	}
	return m
}

func inventData(h dns.RR_Header, target string, covered uint16) dns.RR {
	switch h.Rrtype {
	case dns.TypeCNAME:
		return &dns.CNAME{Hdr: h, Target: target}
	case dns.TypeDNAME:
		return &dns.DNAME{Hdr: h, Target: target}
	case dns.TypeMX:
		return &dns.MX{Hdr: h, Mx: target}
	case dns.TypeSRV:
		return &dns.SRV{Hdr: h, Target: target}
	case dns.TypeNS:
		return &dns.NS{Hdr: h, Ns: target}
	case dns.TypeHTTPS:
		return &dns.HTTPS{SVCB: dns.SVCB{Hdr: h, Priority: 1, Target: target}}
	case dns.TypeSOA:
		return &dns.SOA{Hdr: h, Ns: target, Mbox: target}
	case dns.TypeDS:
		return &dns.DS{Hdr: h, Digest: "00"}
	case dns.TypeNSEC:
		return &dns.NSEC{Hdr: h, NextDomain: target}
	case dns.TypeRRSIG:
		return &dns.RRSIG{Hdr: h, TypeCovered: covered, SignerName: target, Signature: "AAAA"}
	case dns.TypeAAAA:
		return &dns.AAAA{Hdr: h, AAAA: make([]byte, 16)}
	case dns.TypeA:
		return &dns.A{Hdr: h, A: []byte{192, 0, 2, 1}}
	}
	return &dns.TXT{Hdr: h, Txt: []string{"text"}}
}

// compareCleaned cleans the answer, holds what is left against the reference, and
// says what was done.
func compareCleaned(tb testing.TB, b *validator, given *dns.Msg) string {
	tb.Helper()
	packed, err := given.Pack()
	assert.NoError(tb, err)
	given = unpacked(tb, packed)
	var m wire.Message
	assert.NoError(tb, m.Parse(bytes.Clone(packed)))
	want, refused := refer(given)
	if err := b.sanitize(&m); (err != nil) != refused {
		tb.Fatalf("error %v, refused by the reference %t:\n%v", err, refused, given)
	} else if err != nil {
		return err.Error()
	}
	if diff := cmp.Diff(want, listed(unpacked(tb, m.Raw))); diff != "" {
		tb.Fatalf("(-want +got)\n%s\nof\n%v", diff, given)
	}
	done := "changed"
	if cmp.Equal(want, listed(given)) {
		done = "untouched"
		if !bytes.Equal(m.Raw, packed) {
			tb.Error("nothing went, but the bytes are others")
		}
	}
	once := bytes.Clone(m.Raw)
	if err := b.sanitize(&m); err != nil || !bytes.Equal(once, m.Raw) {
		tb.Errorf("once more: error %v, bytes the same %t", err, bytes.Equal(once, m.Raw))
	}
	return done
}

// TestBailiwick invents answers and cleans them, until each thing that may become
// of one has.
func TestBailiwick(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(5, 7))
	var b validator // nothing of an answer is left in it for the next
	done := map[string]int{}
	for range 5000 {
		seed := make([]byte, 3+5*random.IntN(12))
		for i := range seed {
			seed[i] = byte(random.Uint32())
		}
		done[compareCleaned(t, &b, invent(seed))]++
	}
	for _, what := range []string{"untouched", "changed", errContradiction.Error(), errReferral.Error()} {
		if done[what] < 20 {
			t.Errorf("%s: %d of 5000", what, done[what])
		}
	}
	t.Log(done)
}

// FuzzBailiwick holds the rules against the reference.
func FuzzBailiwick(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0, 5, 0, 0})
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0x80 | 10, 3, 0, 0})
	f.Add([]byte{0, 4, 0, 4, 0, 1, 0, 0xc0, 1, 0, 0, 0xc0, 5, 0, 0})
	f.Add([]byte{4, 0, 0, 3, 1, 2, 0, 1, 4, 3, 0, 8, 4, 3, 1})
	f.Add([]byte("0808000\xa10001000")) // a signature before the alias, and a record too many elsewhere
	f.Fuzz(func(t *testing.T, seed []byte) {
		compareCleaned(t, new(validator), invent(seed))
	})
}

// FuzzClean gives bytes: what is left of a message can be read if all of it
// could, is no more than it was, and stays the same when it is looked at again.
func FuzzClean(f *testing.F) {
	for _, msg := range honest(f) {
		f.Add(msg)
	}
	for _, seed := range []string{"\x00\x00\x00\x01\x00\x01\x00\x00\x01\x00\x00\x4f\x05\x03\x02", "\x00\x04\x00\x04\x00\x01\x00\xc0\x01\x00\x00\xcf\x05\x02\x03"} {
		msg, err := invent([]byte(seed)).Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(msg)
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		var m wire.Message
		if m.Parse(bytes.Clone(msg)) != nil {
			return
		}
		before, readable := len(m.Records), new(dns.Msg).Unpack(m.Raw) == nil
		var b validator
		if b.sanitize(&m) != nil {
			return
		}
		if len(m.Records) > before {
			t.Fatalf("%d records became %d", before, len(m.Records))
		}
		if readable && new(dns.Msg).Unpack(m.Raw) != nil {
			t.Fatalf("%x became %x", msg, m.Raw)
		}
		once := bytes.Clone(m.Raw)
		if err := b.sanitize(&m); err != nil || !bytes.Equal(once, m.Raw) {
			t.Fatalf("once more: error %v, %x became %x", err, once, m.Raw)
		}
	})
}

func unpacked(tb testing.TB, msg []byte) *dns.Msg {
	tb.Helper()
	m := new(dns.Msg)
	assert.NoError(tb, m.Unpack(msg))
	return m
}

func listed(m *dns.Msg) (list [3][]string) {
	for i, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			list[i] = append(list[i], rr.String())
		}
	}
	return list
}
