// SPDX-License-Identifier: Apache-2.0

package skydns_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/skydns"
	"github.com/nodecache/node-cache/pkg/wire"
)

// newSource returns a source of sky.test with records by the path below /skydns/test/sky/.
func newSource(tb testing.TB, cfg skydns.Config, values map[string]string) (*skydns.Source, *skydns.Records) {
	tb.Helper()
	cfg.Prefix, cfg.Zones = "/skydns/", append(cfg.Zones, "sky.test.")
	s, err := skydns.New(cfg)
	assert.NoError(tb, err)
	r := s.NewRecords()
	for path, value := range values {
		r.Put("/skydns/test/sky/"+path, []byte(value), false)
	}
	s.Use(r)
	return s, r
}

// query returns a parsed query.
func query(tb testing.TB, name string, qtype uint16) *wire.Query {
	tb.Helper()
	pkt, err := new(dns.Msg).SetQuestion(name, qtype).Pack()
	assert.NoError(tb, err)
	q := new(wire.Query)
	assert.Equal(tb, "rcode", wire.RcodeSuccess, q.Parse(pkt))
	return q
}

// ask returns the verdict, and of an answer the rcode and the records.
func ask(tb testing.TB, s *skydns.Source, name string, qtype uint16) string {
	tb.Helper()
	answer, verdict, target := s.Answer(query(tb, name, qtype), wire.MaxMessage, nil)
	words := []string{[]string{"none", "answered", "alias", "failed", "not ready"}[verdict]}
	if verdict != skydns.Answered && verdict != skydns.Alias {
		assert.Equal(tb, "bytes", 0, len(answer))
		return words[0]
	}
	m := new(dns.Msg)
	assert.NoError(tb, m.Unpack(answer))
	words = append(words, dns.RcodeToString[m.Rcode])
	for _, rr := range append(m.Answer, m.Extra...) {
		words = append(words, strings.Join(strings.Fields(rr.String()), " "))
	}
	if verdict == skydns.Alias {
		words = append(words, "to "+string(wire.AppendText(nil, target)))
	}
	return strings.Join(words, "; ")
}

// TestAnswer answers from the fields of a record. test/cluster compares more names with CoreDNS.
func TestAnswer(t *testing.T) {
	t.Parallel()
	s, _ := newSource(t, skydns.Config{Zones: []string{"sub.sky.test."}}, map[string]string{
		"a": `{"host": "10.0.0.1", "port": 80, "ttl": 60, "other": [1]}`, "six": `{"host": "2001:db8::1"}`, "long": `{"host": "10.0.0.2", "ttl": 999999}`,
		"away": `{"host": "www.example.test"}`, "sub/x": `{"host": "a.sky.test"}`, "TXT/": `{"text": "a\\\"b"}`,
	})
	for _, tt := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"a.sky.test.", dns.TypeA, "answered; NOERROR; a.sky.test. 60 IN A 10.0.0.1"},
		{"a.sky.test.", dns.TypeAAAA, "answered; NOERROR"},
		{"a.sky.test.", dns.TypeSRV, "answered; NOERROR; a.sky.test. 60 IN SRV 10 100 80 a.sky.test.; a.sky.test. 60 IN A 10.0.0.1"},
		{"six.sky.test.", dns.TypeAAAA, "answered; NOERROR; six.sky.test. 300 IN AAAA 2001:db8::1"},
		{"long.sky.test.", dns.TypeA, "answered; NOERROR; long.sky.test. 86400 IN A 10.0.0.2"},
		{"away.sky.test.", dns.TypeTXT, "alias; NOERROR; away.sky.test. 300 IN CNAME www.example.test.; to www.example.test."},
		{"x.sub.sky.test.", dns.TypeA, "answered; NOERROR; x.sub.sky.test. 300 IN CNAME a.sky.test.; a.sky.test. 60 IN A 10.0.0.1"},
		{"y.sub.sky.test.", dns.TypeA, "answered; NXDOMAIN"},
		{"txt.sky.test.", dns.TypeTXT, `answered; NOERROR; txt.sky.test. 300 IN TXT "a\\\"b"`},
		{"sky.test.", dns.TypeSOA, "answered; NOERROR; sky.test. 30 IN SOA ns.dns.sky.test. hostmaster.sky.test. 0 7200 1800 86400 30"},
		{"sub/x.sky.test.", dns.TypeA, "answered; NXDOMAIN"},
		{"test.", dns.TypeA, "none"},
		{"asky.test.", dns.TypeA, "none"},
		{`a\.sky.test.`, dns.TypeA, "none"},
	} {
		assert.Equal(t, tt.name+" "+dns.TypeToString[tt.qtype], tt.want, ask(t, s, tt.name, tt.qtype))
	}
}

// TestAliasWithText has records as external-dns writes them: the name of a host and a text in one. The name is an alias of every
// record's host, and has every record's text.
func TestAliasWithText(t *testing.T) {
	t.Parallel()
	const heritage = `"text": "\"heritage=external-dns\"", "targetstrip": 1`
	s, _ := newSource(t, skydns.Config{}, map[string]string{
		"shop/1a2b": `{"host": "lb.example.test", ` + heritage + `}`,
		"near/1a2b": `{"host": "a.sky.test", ` + heritage + `}`,
		"own":       `{"host": "lb.example.test", "text": "own"}`,
		"a":         `{"host": "10.0.0.1", "text": "beside"}`, "six/1a2b": `{"host": "2001:db8::1", ` + heritage + `}`,
		"two/1": `{"host": "one.example.test", "text": "1"}`, "two/2": `{"host": "two.example.test", "text": "2"}`,
		"mixed/1": `{"host": "one.example.test", "text": "1"}`, "mixed/2": `{"host": "10.0.0.2", "text": "2"}`,
		"apart/1": `{"host": "lb.example.test"}`, "apart/2": `{"text": "apart"}`,
		"loop": `{"host": "pool.sky.test", "text": "l"}`, "pool": `{"host": "loop.sky.test", "text": "p"}`, "self": `{"host": "self.sky.test", "text": "s"}`,
		"mail/1": `{"host": "mx.example.test", "mail": true, "port": 25, "text": "m"}`,
	})
	const text = `"\"heritage=external-dns\""`
	for _, tt := range []struct{ names, types, want string }{
		{"shop", "A AAAA", "alias; NOERROR; shop.sky.test. 300 IN CNAME lb.example.test.; to lb.example.test."},
		{"shop", "CNAME", "answered; NOERROR; shop.sky.test. 300 IN CNAME lb.example.test."},
		{"shop", "TXT", "answered; NOERROR; shop.sky.test. 300 IN TXT " + text},
		{"shop", "SRV", "answered; NOERROR; shop.sky.test. 300 IN SRV 10 100 0 example.test."},
		{"shop", "MX NS PTR HINFO", "answered; NOERROR"},
		{"1a2b.shop", "A", "alias; NOERROR; 1a2b.shop.sky.test. 300 IN CNAME lb.example.test.; to lb.example.test."},
		{"near", "A", "answered; NOERROR; near.sky.test. 300 IN CNAME a.sky.test.; a.sky.test. 300 IN A 10.0.0.1"},
		{"near", "AAAA", "answered; NOERROR; near.sky.test. 300 IN CNAME a.sky.test."},
		{"near", "CNAME", "answered; NOERROR; near.sky.test. 300 IN CNAME a.sky.test."},
		{"own", "A", "alias; NOERROR; own.sky.test. 300 IN CNAME lb.example.test.; to lb.example.test."},
		{"own", "TXT", `answered; NOERROR; own.sky.test. 300 IN TXT "own"`},
		{"a", "A", "answered; NOERROR; a.sky.test. 300 IN A 10.0.0.1"},
		{"a", "TXT", `answered; NOERROR; a.sky.test. 300 IN TXT "beside"`},
		{"a six", "CNAME", "answered; NOERROR"},
		{"six", "AAAA", "answered; NOERROR; six.sky.test. 300 IN AAAA 2001:db8::1"},
		{"two", "CNAME", "answered; NOERROR; two.sky.test. 300 IN CNAME one.example.test."},
		{"mixed", "A", "answered; NOERROR; mixed.sky.test. 300 IN A 10.0.0.2"},
		{"mixed", "AAAA CNAME", "answered; NOERROR"},
		{"apart", "A", "alias; NOERROR; apart.sky.test. 300 IN CNAME lb.example.test.; to lb.example.test."},
		{"apart", "TXT", `answered; NOERROR; apart.sky.test. 300 IN TXT "apart"`},
		{"loop", "A", "failed"},
		{"loop", "CNAME", "answered; NOERROR; loop.sky.test. 300 IN CNAME pool.sky.test."},
		{"self", "A CNAME", "answered; NOERROR"},
		{"mail", "MX", "answered; NOERROR; mail.sky.test. 300 IN MX 10 mx.example.test."},
		{"mail", "SRV", "answered; NOERROR; mail.sky.test. 300 IN SRV 10 100 25 mx.example.test."},
	} {
		for name := range strings.FieldsSeq(tt.names) {
			for qtype := range strings.FieldsSeq(tt.types) {
				assert.Equal(t, name+" "+qtype, tt.want, ask(t, s, name+".sky.test.", dns.StringToType[qtype]))
			}
		}
	}
}

// TestRotation puts each address of a set first, and changes nothing else of the answer.
func TestRotation(t *testing.T) {
	t.Parallel()
	values := map[string]string{"alias": `{"host": "set.sky.test"}`}
	for i := range 3 {
		values[fmt.Sprintf("set/four%d", i)] = fmt.Sprintf(`{"host": "10.0.0.%d", "port": 80}`, i)
		values[fmt.Sprintf("set/six%d", i)] = fmt.Sprintf(`{"host": "2001:db8::%d"}`, i)
	}
	s, _ := newSource(t, skydns.Config{}, values)
	for _, tt := range []struct {
		name  string
		qtype uint16
		first string // record of the set
	}{
		{"set.sky.test.", dns.TypeA, "set.sky.test. 300 IN A 10.0.0."},
		{"set.sky.test.", dns.TypeAAAA, "set.sky.test. 300 IN AAAA 2001:db8::"},
		{"alias.sky.test.", dns.TypeA, "set.sky.test. 300 IN A 10.0.0."},
	} {
		firsts, sets := map[string]bool{}, map[string]bool{}
		for range 3 {
			records := strings.Split(ask(t, s, tt.name, tt.qtype), "; ")
			firsts[records[slices.IndexFunc(records, func(r string) bool { return strings.HasPrefix(r, tt.first) })]] = true
			slices.Sort(records)
			sets[strings.Join(records, "; ")] = true
		}
		assert.Equal(t, tt.name+" "+dns.TypeToString[tt.qtype]+": addresses that came first", 3, len(firsts))
		assert.Equal(t, tt.name+" "+dns.TypeToString[tt.qtype]+": sets", 1, len(sets))
	}
}

// TestOnward answers names without a record only where nothing else can.
func TestOnward(t *testing.T) {
	t.Parallel()
	s, r := newSource(t, skydns.Config{Onward: true}, map[string]string{"a": `{"host": "10.0.0.1"}`, "lost": `{"host": "none.sky.test"}`})
	assert.Equal(t, "no record", "none", ask(t, s, "b.sky.test.", dns.TypeA))
	assert.Equal(t, "another type", "answered; NOERROR", ask(t, s, "a.sky.test.", dns.TypeMX))
	assert.Equal(t, "an alias of no record", "answered; NXDOMAIN; lost.sky.test. 300 IN CNAME none.sky.test.", ask(t, s, "lost.sky.test.", dns.TypeA))
	r.Delete("/skydns/test/sky/a")
	assert.Equal(t, "a deleted record", "none", ask(t, s, "a.sky.test.", dns.TypeA))
	s, err := skydns.New(skydns.Config{Prefix: "/skydns/", Zones: []string{"sky.test."}, Onward: true})
	assert.NoError(t, err)
	assert.Equal(t, "before the first read", "not ready", ask(t, s, "b.sky.test.", dns.TypeA))
}

// TestRoot answers for the zone of all names.
func TestRoot(t *testing.T) {
	t.Parallel()
	s, err := skydns.New(skydns.Config{Prefix: "/skydns/", Zones: []string{"."}})
	assert.NoError(t, err)
	r := s.NewRecords()
	r.Put("/skydns/test/a", []byte(`{"host": "10.0.0.1"}`), false)
	s.Use(r)
	assert.Equal(t, "a name", "answered; NOERROR; a.test. 300 IN A 10.0.0.1", ask(t, s, "a.test.", dns.TypeA))
	assert.Equal(t, "no name", "answered; NXDOMAIN", ask(t, s, "b.test.", dns.TypeA))
	assert.Equal(t, "the root", "answered; NOERROR; . 30 IN SOA ns.dns. hostmaster. 0 7200 1800 86400 30", ask(t, s, ".", dns.TypeSOA))
}

// TestInvalid counts records without use, names one, and serves the others.
func TestInvalid(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, key, value, want string }{
		{"no JSON", "x", "host", "parsing the value"},
		{"another type", "x", `{"port": "80"}`, "parsing the value"},
		{"a negative TTL", "x", `{"ttl": -1}`, "parsing the value"},
		{"a port out of range", "x", `{"host": "10.0.0.1", "port": 65536}`, "port 65536 is not between -1 and 65535"},
		{"a priority out of range", "x", `{"host": "10.0.0.1", "priority": 70000}`, "priority 70000"},
		{"a weight out of range", "x", `{"host": "10.0.0.1", "weight": -1}`, "weight -1"},
		{"an address with a mistake", "x", `{"host": "10.0.0.300"}`, `host "10.0.0.300" is neither`},
		{"a URL", "x", `{"host": "http://a.example"}`, "is neither"},
		{"an address of a link", "x", `{"host": "fe80::1%eth0"}`, "is neither"},
		{"a label that is too long", "x", `{"host": "` + strings.Repeat("a", 64) + `.test"}`, "is neither"},
		{"a long value", "x", `{"text": "` + strings.Repeat("a", 65<<10) + `"}`, "more than 65536"},
		{"a long error", "x", `{"port": ` + strings.Repeat("9", 60<<10) + `}`, "parsing the value"},
		{"an empty label", "x//y", `{"host": "10.0.0.1"}`, "not a domain name"},
		{"a space", "x y", `{"host": "10.0.0.1"}`, "not a domain name"},
		{"a dot in a label", "x.y", `{"host": "10.0.0.1"}`, "not a domain name"},
		{"a long label", strings.Repeat("x", 64), `{"host": "10.0.0.1"}`, "not a domain name"},
		{"a long name", strings.Repeat("x/", 130), `{"host": "10.0.0.1"}`, "not a domain name"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, r := newSource(t, skydns.Config{}, map[string]string{"good": `{"host": "10.0.0.1"}`, tt.key: tt.value})
			st := s.Stats()
			if st.Invalid != 1 || st.Records != 1 || !strings.Contains(st.Why, tt.want) || len(st.Why) > 600 {
				t.Errorf("%d invalid, %d valid, %d bytes of %.600q, want one of each and %q", st.Invalid, st.Records, len(st.Why), st.Why, tt.want)
			}
			assert.Equal(t, "the other record", "answered; NOERROR; good.sky.test. 300 IN A 10.0.0.1", ask(t, s, "good.sky.test.", dns.TypeA))
			r.Put("/skydns/test/sky/"+tt.key, []byte(`{"host": "10.0.0.1"}`), false)
			r.Delete("/skydns/test/sky/" + tt.key)
			assert.Equal(t, "after its deletion", 0, s.Stats().Invalid)
		})
	}
}

// TestLeased gives a record with a lease a short TTL.
func TestLeased(t *testing.T) {
	t.Parallel()
	s, r := newSource(t, skydns.Config{}, nil)
	r.Put("/skydns/test/sky/a", []byte(`{"host": "10.0.0.1"}`), true)
	assert.Equal(t, "answer", "answered; NOERROR; a.sky.test. 30 IN A 10.0.0.1", ask(t, s, "a.sky.test.", dns.TypeA))
}

// TestMemoryBound refuses records above the bound, keeps the others, and reports when there is room.
func TestMemoryBound(t *testing.T) {
	t.Parallel()
	s, r := newSource(t, skydns.Config{}, nil)
	key := func(i int) string { return fmt.Sprintf("/skydns/test/sky/%06d", i) }
	const n = 70_000
	for i := range n {
		r.Put(key(i), []byte(`{"host": "10.0.0.1"}`), false)
	}
	r.Put("/skydns/test/other/x", nil, false)
	st := s.Stats()
	if st.Records == 0 || st.Records > 65536 || st.Refused != n-st.Records || st.Bytes > 16<<20 || r.HasRoom() {
		t.Errorf("%+v, want at most 16 MiB and the others refused", st)
	}
	assert.Equal(t, "a record within the bound", "answered; NOERROR; 000000.sky.test. 300 IN A 10.0.0.1", ask(t, s, "000000.sky.test.", dns.TypeA))
	r.Put(key(0), []byte(`{"host": "10.0.0.2"}`), false)
	assert.Equal(t, "its change", "answered; NOERROR; 000000.sky.test. 300 IN A 10.0.0.2", ask(t, s, "000000.sky.test.", dns.TypeA))
	for i := range n / 2 {
		r.Delete(key(i))
	}
	assert.Equal(t, "room", true, r.HasRoom())
}

// TestReadBound fails queries that read too many records: those of a whole zone, wildcards, chains without an end.
func TestReadBound(t *testing.T) {
	t.Parallel()
	values := map[string]string{"loop": `{"host": "pool.sky.test"}`, "pool": `{"host": "loop.sky.test"}`, "self": `{"host": "self.sky.test"}`}
	for i := range 3000 {
		values[fmt.Sprintf("many/%d", i)] = `{"host": "10.0.0.1"}`
		values[fmt.Sprintf("wide/%d", i)] = `{"host": "many.sky.test", "port": 1}`
	}
	s, _ := newSource(t, skydns.Config{}, values)
	for _, tt := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"many.sky.test.", dns.TypeA, "failed"},
		{"wide.sky.test.", dns.TypeSRV, "failed"},
		{"7.wide.sky.test.", dns.TypeSRV, "answered; NOERROR; 7.wide.sky.test. 300 IN SRV 10 100 1 many.sky.test."}, // additional records are optional
		{"*.many.sky.test.", dns.TypeA, "failed"},
		{"none.any.sky.test.", dns.TypeA, "failed"},
		{"loop.sky.test.", dns.TypeA, "failed"},
		{"self.sky.test.", dns.TypeA, "answered; NOERROR"},
		{"7.many.sky.test.", dns.TypeA, "answered; NOERROR; 7.many.sky.test. 300 IN A 10.0.0.1"},
		{"many.sky.test.", dns.TypeHINFO, "answered; NOERROR"},
		{"sky.test.", dns.TypeHINFO, "answered; NOERROR"},
	} {
		assert.Equal(t, tt.name+" "+dns.TypeToString[tt.qtype], tt.want, ask(t, s, tt.name, tt.qtype))
	}
	assert.Equal(t, "failures", uint64(5), s.Stats().Failed)
}

// TestAllocations allocates nothing for names in no zone, and for recent answers.
func TestAllocations(t *testing.T) {
	s, _ := newSource(t, skydns.Config{}, map[string]string{"a": `{"host": "10.0.0.1"}`})
	dst := make([]byte, 0, 512)
	for _, name := range []string{"www.example.com.", "a.sky.test.", "none.sky.test."} {
		q := query(t, name, dns.TypeA)
		if n := testing.AllocsPerRun(100, func() { s.Answer(q, wire.MaxMessage, dst) }); n > 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
}

// FuzzAnswer answers from any record without a panic, in messages that package dns reads.
func FuzzAnswer(f *testing.F) {
	f.Add("a", `{"host": "b.sky.test", "mail": true}`, "b/c", `{"host": "10.0.0.1", "targetstrip": 3, "group": "g"}`)
	f.Add("*", `{"text": "\\065\\"}`, "dns/ns/x", `{"host": "::1", "port": -1, "weight": 5}`)
	f.Fuzz(func(t *testing.T, key, value, key2, value2 string) {
		s, r := newSource(t, skydns.Config{}, map[string]string{key: value, key2: value2})
		for _, name := range []string{"sky.test.", "a.sky.test.", "b.sky.test.", "*.sky.test.", "x.any.sky.test."} {
			for _, qtype := range []uint16{dns.TypeA, dns.TypeTXT, dns.TypeSRV, dns.TypeMX, dns.TypeNS, dns.TypePTR, dns.TypeCNAME} {
				ask(t, s, name, qtype)
			}
		}
		r.Delete("/skydns/test/sky/" + key)
		r.Delete("/skydns/test/sky/" + key2)
		if st := s.Stats(); st.Records+st.Invalid+st.Bytes > 0 {
			t.Errorf("%+v after all records were deleted", st)
		}
	})
}

// BenchmarkAnswer answers an address, and a wildcard that reads as many records as a query may.
func BenchmarkAnswer(b *testing.B) {
	values := map[string]string{}
	for i := range 500 {
		values[fmt.Sprint(i)] = `{"host": "10.0.0.1"}`
		values[fmt.Sprintf("set/%d", i)] = fmt.Sprintf(`{"host": "10.0.0.%d", "port": %d}`, i%250, i)
	}
	s, r := newSource(b, skydns.Config{}, values)
	for name, q := range map[string]*wire.Query{"address": query(b, "7.sky.test.", dns.TypeA), "wildcard": query(b, "x.any.sky.test.", dns.TypeA), "set": query(b, "set.sky.test.", dns.TypeSRV), "outside": query(b, "www.example.com.", dns.TypeA)} {
		b.Run(name, func(b *testing.B) {
			dst := make([]byte, 0, 64<<10)
			for b.Loop() {
				r.Delete("/skydns/test/sky/none") // a change: the answer is not a recent one
				s.Answer(q, wire.MaxMessage, dst)
			}
		})
	}
}
