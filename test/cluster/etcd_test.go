// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// etcdServer is an etcd on a port of its own.
type etcdServer struct {
	*proctest.Process
	url, folder string
	config      clientv3.Config
	client      *clientv3.Client
}

// newEtcd returns an etcd that does not run yet.
func newEtcd(t *testing.T) *etcdServer {
	t.Helper()
	return &etcdServer{url: "http://" + proctest.FreeAddr(t).String(), folder: t.TempDir()}
}

// startEtcd runs etcd until the test ends.
func startEtcd(t *testing.T) *etcdServer {
	t.Helper()
	s := newEtcd(t)
	s.launch(t)
	return s
}

// launch starts it, also again after it was killed.
func (s *etcdServer) launch(t *testing.T, args ...string) {
	t.Helper()
	program, err := kubetest.Program(t.Context(), "etcd")
	assert.NoError(t, err)
	cmd := exec.Command(program, slices.Concat(kubetest.EtcdArgs("etcd"), []string{"--listen-client-urls=" + s.url, "--advertise-client-urls=" + s.url}, args)...)
	cmd.Dir = s.folder
	s.Process = proctest.Start(t, "etcd", cmd)
	s.config.Endpoints = []string{s.url}
	s.client, err = clientv3.New(s.config)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = s.client.Close() })
}

// put writes values by key.
func (s *etcdServer) put(t *testing.T, values map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for _, key := range slices.Sorted(maps.Keys(values)) {
		_, err := s.client.Put(ctx, key, values[key])
		assert.NoError(t, err)
	}
}

// section is the configuration of node-cache.
func (s *etcdServer) section(zones, more string) string {
	return fmt.Sprintf("etcd: {endpoints: [%q], zones: [%s]%s}", s.url, zones, more)
}

const (
	etcdZones = "sky.test empty.test 10.in-addr.arpa"
	skydns    = "/skydns/test/sky/"
)

// etcdRecords have every field of a record, and names that lead to each rule of the answers.
func etcdRecords() map[string]string {
	records := map[string]string{
		"/skydns/arpa/in-addr/10/0/0/1": `{"host": "one.sky.test"}`,
		"/skydns/arpa/in-addr/10/0/0/2": `{"host": "10.0.0.2"}`,
	}
	for name, value := range map[string]string{
		"one": `{"host": "10.0.0.1", "port": 80, "ttl": 60}`, "six": `{"host": "2001:db8::6", "port": 80}`, "mapped": `{"host": "::ffff:10.0.0.9"}`,
		// Several records of a name.
		"pair/a": `{"host": "10.0.1.1", "port": 80, "weight": 10}`, "pair/b": `{"host": "10.0.1.2", "port": 81, "weight": 30}`,
		"pair/c/deep": `{"host": "2001:db8::12", "port": 82, "priority": 20}`,
		"twice/a":     `{"host": "10.0.1.3", "port": 80}`, "twice/b": `{"host": "10.0.1.3", "port": 443}`,
		"both": `{"host": "10.0.2.1", "port": 1}`, "both/below": `{"host": "10.0.2.2", "port": 2}`,
		"ttls/a": `{"host": "10.0.2.3", "ttl": 20}`, "ttls/b": `{"host": "10.0.2.4", "ttl": 40}`,
		// Aliases: to a name here, through three, to another server, to nothing, to itself, in a circle, beside an address.
		"near": `{"host": "one.sky.test", "port": 8080}`, "chain": `{"host": "chain2.sky.test"}`, "chain2": `{"host": "chain3.sky.test."}`, "chain3": `{"host": "PAIR.sky.test"}`,
		"far": `{"host": "www.example.test", "port": 8080}`, "farther": `{"host": "far.sky.test"}`, "dangling": `{"host": "none.sky.test"}`, "missing": `{"host": "gone.example.test"}`,
		"self": `{"host": "self.sky.test"}`, "circle": `{"host": "circle2.sky.test"}`, "circle2": `{"host": "circle.sky.test"}`,
		"mixed/a": `{"host": "one.sky.test", "port": 1}`, "mixed/b": `{"host": "10.0.3.1", "port": 2}`, "two/a": `{"host": "one.sky.test"}`, "two/b": `{"host": "pair.sky.test"}`,
		// Texts, with what other formats escape.
		"text": `{"text": "hello"}`, "texts/a": `{"text": "first"}`, "texts/b": `{"text": "second \"quoted\""}`, "both-kinds": `{"text": "beside", "host": "10.0.4.1"}`,
		"dns-a/1a2b": `{"host": "www.example.test", "text": "\"heritage=external-dns\"", "targetstrip": 1}`,
		"named":      `{"text": "beside a name", "host": "one.sky.test", "port": 5}`, "long": `{"text": "` + strings.Repeat("x", 600) + `"}`,
		"even": `{"text": "` + strings.Repeat("y", 510) + `"}`, "backslash": `{"text": "a\\b"}`, "nothing": `{}`, "texted": `{"host": "text.sky.test"}`,
		// Mail and targets without labels.
		"mail/a": `{"host": "mx.example.test", "mail": true, "priority": 50}`, "mail/b": `{"host": "one.sky.test", "mail": true}`, "mail/c": `{"host": "10.0.5.1", "mail": true, "targetstrip": 1}`,
		"mail/d": `{"host": "10.0.5.2"}`, "strip/x": `{"host": "10.0.6.1", "port": 9, "targetstrip": 1}`, "strip/y": `{"host": "10.0.6.2", "port": 9, "targetstrip": 1}`,
		"strips/x": `{"host": "a.b.sky.test", "port": 9, "targetstrip": 2}`, "overstrip": `{"host": "10.0.6.3", "port": 9, "targetstrip": 20}`, "noport": `{"host": "10.0.6.4", "port": -1}`,
		"weights/a": `{"host": "10.0.6.5", "weight": 49, "port": 1}`, "weights/b": `{"host": "10.0.6.6", "weight": 1, "port": 1}`, "weights/c": `{"host": "10.0.6.7", "weight": 30000, "port": 1}`,
		// Groups: the same, of one record, different at one level, set by the shorter path, of none first.
		"group1/a": `{"host": "10.0.7.1", "group": "g1"}`, "group1/b/x": `{"host": "10.0.7.2", "group": "g1"}`, "group1/c": `{"host": "10.0.7.3"}`,
		"group2/a": `{"host": "10.0.7.4", "group": "g1"}`, "group2/b": `{"host": "10.0.7.5", "group": "g2"}`,
		"group3/a/x": `{"host": "10.0.7.6", "group": "g1"}`, "group3/b": `{"host": "10.0.7.7", "group": "g2"}`, "group3/c/y": `{"host": "10.0.7.8", "group": "g2"}`,
		"group4/a": `{"host": "10.0.7.9"}`, "group4/b": `{"host": "10.0.7.10", "group": "g2"}`, "group5/a": `{"text": "one", "group": "g1"}`, "group5/b/x": `{"text": "two", "group": "g2"}`,
		// Regions, for wildcards.
		"east/web/1": `{"host": "10.1.0.1", "port": 80}`, "east/db/1": `{"host": "10.1.0.2", "port": 5432}`, "west/web/1": `{"host": "10.2.0.1", "port": 80}`,
		"west/web/2": `{"host": "2001:db8::2:1", "port": 80}`, "west/cache": `{"host": "10.2.0.3", "port": 6379}`,
		// The zone itself.
		"dns/apex": `{"host": "10.9.0.1"}`, "dns/ns/a": `{"host": "10.9.0.2"}`, "dns/ns/b": `{"host": "2001:db8::9"}`, "dns/ns/c/1": `{"host": "10.9.0.4", "targetstrip": 1}`,
		"dns/ns/c/2": `{"host": "10.9.0.5", "targetstrip": 1}`, "UPPER/1": `{"host": "10.9.1.1"}`, "sl%61sh": `{"host": "10.9.1.2"}`,
	} {
		records[skydns+name] = value
	}
	return records
}

// outside answers for names in no zone of etcd.
func outside(q *dns.Msg) *dns.Msg {
	m, name := new(dns.Msg).SetReply(q), strings.ToLower(q.Question[0].Name)
	header := dns.RR_Header{Name: q.Question[0].Name, Rrtype: q.Question[0].Qtype, Class: dns.ClassINET, Ttl: 120}
	switch {
	case strings.HasPrefix(name, "gone."):
		m.Rcode = dns.RcodeNameError
	case header.Rrtype == dns.TypeA:
		m.Answer = []dns.RR{&dns.A{Hdr: header, A: net.IPv4(192, 0, 2, 1)}}
	case header.Rrtype == dns.TypeTXT:
		m.Answer = []dns.RR{&dns.TXT{Hdr: header, Txt: []string{"outside"}}}
	}
	return m
}

// The reasons why an answer is not that of CoreDNS's plugin.
const (
	noName      = "RFC 2308 section 2.1: NXDOMAIN is for a name, whatever the type, and not for one that has names below it"
	noWildcard  = "RFC 2308 section 2.1: no name has these labels, so that a wildcard finds none"
	chased      = "RFC 1034 section 4.3.2, RFC 6604: an alias is in the answer even if its target has no such record, with the rcode of the target"
	oneAlias    = "RFC 1034 section 3.6.2, RFC 2181 section 10.1: a name has one CNAME record, and none beside addresses"
	endless     = "RFC 1034 section 3.6.2: aliases in a circle are an error"
	sameTTL     = "RFC 2181 section 5.2: the records of a set have one TTL, the lowest"
	ofApex      = "RFC 1035 section 3.2.1, RFC 2308 section 3: the SOA record belongs to the zone's own name; the zone exists although it has no records"
	noAlias     = "RFC 2181 section 10.3: additional records are the addresses of the target, of both families, and not those of aliases"
	optional    = "RFC 2782: additional records are optional; those of other servers are not fetched"
	targetOf    = "the address belongs to the target, which targetstrip shortens"
	noEmpty     = "RFC 1035 section 3.3.14: no empty string follows a full one, and a backslash stays"
	anyCase     = "RFC 4343: names differ in more than case"
	hostAndText = "a record's host and its text are both records of its name: external-dns writes them into one"
	anyType     = "RFC 1034 section 3.6.2: a name that is an alias for addresses is one for type CNAME, also by a record below it"
)

// TestEtcd compares the answers from records of etcd with those of CoreDNS's plugin etcd. They differ only for the reason that is
// named.
func TestEtcd(t *testing.T) {
	t.Parallel()
	etcd, upstream := startEtcd(t), serve(t, outside)
	etcd.put(t, etcdRecords())
	program, err := kubetest.Program(t.Context(), "coredns")
	assert.NoError(t, err)
	coredns := kubetest.StartCoreDNS(t, &kubetest.Cluster{Programs: kubetest.Programs{CoreDNS: program}}, fmt.Sprintf(`. {
	bind 127.0.0.1
	ready {$READY}
	etcd %s {
		endpoint %s
	}
	forward . %s
}
`, etcdZones, etcd.url, upstream))
	n := startNode(t, settings{root: upstream, more: etcd.section(strings.ReplaceAll(etcdZones, " ", ", "), ""), cluster: []string{"resolver: none"}})
	n.awaitAnswer(t, "one.sky.test.", "NOERROR 10.0.0.1")
	same, other := 0, map[string]int{}
	for _, tt := range etcdQuestions() {
		for name := range strings.FieldsSeq(tt.names) {
			for qtype := range strings.FieldsSeq(tt.types) {
				theirs, ours := askEtcd(t, coredns.Addr(), name, qtype), askEtcd(t, n.settings.addr, name, qtype)
				switch {
				case tt.reason == "" && theirs == ours:
					same++
				case tt.reason == "" || theirs == ours || !strings.Contains(strings.ToLower(ours), strings.ToLower(tt.want)):
					t.Errorf("%s %s: reason for a difference: %q, want %s\nCoreDNS:    %s\nnode-cache: %s", name, qtype, tt.reason, tt.want, theirs, ours)
				default:
					other[tt.reason]++
				}
			}
		}
	}
	proctest.Figure(t, "%d answers from etcd are those of CoreDNS, others differ for %d reasons", same, len(other))
}

// TestEtcdFaults stops etcd, and starts it again with other records, with compacted ones, as another store, and as another cluster.
func TestEtcdFaults(t *testing.T) {
	t.Parallel()
	etcd := newEtcd(t)
	n := startNode(t, settings{root: startUpstream(t), more: etcd.section("sky.test", ""), cluster: []string{"resolver: none"}})
	n.expect(t, expectedAnswer{"a.sky.test.", dns.TypeA, "SERVFAIL ede=14"}, expectedAnswer{"none.sky.test.", dns.TypeA, "SERVFAIL ede=14"},
		expectedAnswer{"large.example.test.", dns.TypeMX, "NOERROR"})
	n.awaitProblem(t, "connection refused")

	etcd.launch(t)
	etcd.put(t, map[string]string{skydns + "a": address("10.0.0.1"), skydns + "b": address("10.0.0.2"), skydns + "bad": "{", skydns + "worse": address("10.0.0.300")})
	n.awaitAnswer(t, "b.sky.test.", "NOERROR 10.0.0.2")
	n.awaitProblem(t, `2 records invalid and not served, the first at "/skydns/test/sky/bad": parsing the value`)
	n.expect(t, expectedAnswer{"none.sky.test.", dns.TypeA, "NXDOMAIN"}, expectedAnswer{"bad.sky.test.", dns.TypeA, "NXDOMAIN"})
	etcd.put(t, map[string]string{skydns + "a": address("10.0.0.3"), skydns + "bad": address("10.0.0.4"), skydns + "worse": `{"text": "right"}`})
	_, err := etcd.client.Delete(t.Context(), skydns+"b")
	assert.NoError(t, err)
	n.awaitAnswer(t, "b.sky.test.", "NXDOMAIN")
	n.expect(t, expectedAnswer{"a.sky.test.", dns.TypeA, "NOERROR 10.0.0.3"}, expectedAnswer{"bad.sky.test.", dns.TypeA, "NOERROR 10.0.0.4"})
	n.awaitNoProblem(t)

	out, err := exec.CommandContext(t.Context(), nodeCache, "query", "a.sky.test", "--explain", "--server", n.settings.addr.String()).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "explained: source=etcd") {
		t.Errorf("node-cache query --explain: %v\n%s", err, out)
	}

	etcd.Kill()
	n.awaitProblem(t, "3 records are served")
	n.expect(t, expectedAnswer{"a.sky.test.", dns.TypeA, "NOERROR 10.0.0.3"}, expectedAnswer{"none.sky.test.", dns.TypeA, "NXDOMAIN"})
	text, err := n.Page("/metrics")
	assert.NoError(t, err)
	if !strings.Contains(text, "nodecache_etcd_up 0") || strings.Contains(text, "nodecache_etcd_failures_total 0") {
		t.Error("no series says that etcd is away")
	}
	reads := n.reads(t)
	etcd.launch(t)
	etcd.put(t, map[string]string{skydns + "a": address("10.0.0.5")})
	n.awaitAnswer(t, "a.sky.test.", "NOERROR 10.0.0.5")
	n.awaitNoProblem(t)
	assert.Equal(t, "reads after an outage", reads, n.reads(t))

	// The changes during an outage are compacted.
	n.Signal(syscall.SIGSTOP)
	etcd.Kill()
	etcd.launch(t)
	etcd.put(t, map[string]string{skydns + "a": address("10.0.0.6"), skydns + "c": address("10.0.0.7")})
	latest, err := etcd.client.Delete(t.Context(), skydns+"bad")
	assert.NoError(t, err)
	_, err = etcd.client.Compact(t.Context(), latest.Header.Revision)
	assert.NoError(t, err)
	n.Signal(syscall.SIGCONT)
	n.awaitAnswer(t, "bad.sky.test.", "NXDOMAIN")
	n.expect(t, expectedAnswer{"a.sky.test.", dns.TypeA, "NOERROR 10.0.0.6"}, expectedAnswer{"c.sky.test.", dns.TypeA, "NOERROR 10.0.0.7"})
	assert.Equal(t, "reads after a compaction", reads+1, n.reads(t))

	// Another store, with an older revision.
	etcd.Kill()
	etcd.folder = t.TempDir()
	etcd.launch(t)
	etcd.put(t, map[string]string{skydns + "d": address("10.0.0.8")})
	n.awaitAnswer(t, "d.sky.test.", "NOERROR 10.0.0.8")
	n.expect(t, expectedAnswer{"a.sky.test.", dns.TypeA, "NXDOMAIN"})

	// Another cluster, with a newer revision.
	n.Signal(syscall.SIGSTOP)
	etcd.Kill()
	etcd.folder = t.TempDir()
	etcd.launch(t, "--initial-cluster-token=other")
	etcd.put(t, map[string]string{skydns + "e": address("10.0.0.10")})
	for range 10 {
		etcd.put(t, map[string]string{"/other": "x"})
	}
	n.Signal(syscall.SIGCONT)
	n.awaitAnswer(t, "e.sky.test.", "NOERROR 10.0.0.10")
	n.expect(t, expectedAnswer{"d.sky.test.", dns.TypeA, "NXDOMAIN"})
	etcd.put(t, map[string]string{skydns + "d": address("10.0.0.8")})
	n.awaitAnswer(t, "d.sky.test.", "NOERROR 10.0.0.8")

	// A reload adds a zone, one to a store that does not answer is refused, and one takes the zones away.
	etcd.put(t, map[string]string{"/skydns/test/two/a": address("10.0.0.9")})
	n.reload(t, etcd.section("sky.test, two.test", ", fallthrough: on"))
	n.awaitAnswer(t, "a.two.test.", "NOERROR 10.0.0.9")
	n.expect(t, expectedAnswer{"d.sky.test.", dns.TypeA, "NOERROR 10.0.0.8"}, expectedAnswer{"none.sky.test.", dns.TypeMX, n.answerText("none.example.test.", dns.TypeMX)})
	n.reload(t, newEtcd(t).section("sky.test", ""))
	proctest.Eventually(t, limit, "the reload is refused", func() bool { return strings.Contains(n.status(t).Config.LastError, "connection refused") })
	n.expect(t, expectedAnswer{"a.two.test.", dns.TypeA, "NOERROR 10.0.0.9"})
	n.reload(t, "")
	proctest.Eventually(t, limit, "the zone is looked up", func() bool {
		return n.answerText("a.two.test.", dns.TypeA) == n.answerText("a.example.test.", dns.TypeA)
	})
}

// address is a record with an address.
func address(addr string) string { return fmt.Sprintf(`{"host": %q}`, addr) }

// reload writes another section etcd.
func (n *node) reload(t *testing.T, section string) {
	t.Helper()
	n.settings.more = section
	n.write(t)
}

// reads is how often all records were read.
func (n *node) reads(t *testing.T) int {
	t.Helper()
	return n.status(t).Etcd.Reads
}

// awaitProblem waits until /status names a problem of etcd.
func (n *node) awaitProblem(t *testing.T, what string) {
	t.Helper()
	proctest.Eventually(t, limit, "/status names the problem "+what, func() bool {
		return slices.ContainsFunc(n.status(t).Problems, func(p problem) bool { return p.Where == "etcd" && strings.Contains(p.What, what) })
	}, func() string { return fmt.Sprint(n.status(t).Problems) })
}

// awaitNoProblem waits until /status names none of etcd.
func (n *node) awaitNoProblem(t *testing.T) {
	t.Helper()
	proctest.Eventually(t, limit, "/status names no problem of etcd", func() bool {
		return !slices.ContainsFunc(n.status(t).Problems, func(p problem) bool { return p.Where == "etcd" })
	}, func() string { return fmt.Sprint(n.status(t).Problems) })
}

// askEtcd asks over TCP and puts the answer into words: the rcode and the records of each section, in their order.
func askEtcd(t *testing.T, server netip.AddrPort, name, qtype string) string {
	t.Helper()
	client := dns.Client{Net: "tcp", Timeout: clientTimeout}
	m, _, err := client.Exchange(new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.StringToType[qtype]), server.String())
	assert.NoError(t, err)
	words := []string{dns.RcodeToString[m.Rcode]}
	for i, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		var list []string
		for _, rr := range section {
			if soa, is := rr.(*dns.SOA); is {
				soa.Serial = 0
			}
			if rr.Header().Rrtype != dns.TypeOPT {
				// RFC 4343: the case of names is as asked, or as in etcd.
				list = append(list, strings.ToLower(strings.Join(strings.Fields(rr.String()), " ")))
			}
		}
		slices.Sort(list)
		words = append(words, fmt.Sprintf("[%s: %s]", []string{"answer", "authority", "additional"}[i], strings.Join(list, "; ")))
	}
	return strings.Join(words, " ")
}

// An etcdQuestion are questions whose answers differ for a reason, or with none are the same.
type etcdQuestion struct {
	names, types, reason string
	want                 string // a part of the agent's answer, where they differ
}

func etcdQuestions() []etcdQuestion {
	const most = "A AAAA TXT SRV MX HINFO NS"
	return []etcdQuestion{
		{"one.sky.test ONE.sky.test six.sky.test mapped.sky.test pair.sky.test twice.sky.test both.sky.test below.both.sky.test", most, "", ""},
		{"group1.sky.test group2.sky.test group3.sky.test group4.sky.test group5.sky.test", most, "", ""},
		{"text.sky.test texts.sky.test long.sky.test nothing.sky.test", most, "", ""},
		{"none.sky.test a.none.sky.test *.none.sky.test x.empty.test *.empty.test none.10.in-addr.arpa", most + " CNAME PTR", "", ""},
		{"*.west.sky.test any.west.sky.test web.*.sky.test web.any.sky.test 1.web.*.sky.test *.web.west.sky.test any.any.any.sky.test", most, "", ""},
		{"strip.sky.test overstrip.sky.test noport.sky.test weights.sky.test west.sky.test east.sky.test dns.sky.test ns.dns.sky.test", most, "", ""},
		{"near.sky.test", "A SRV MX HINFO CNAME", "", ""},
		{"far.sky.test farther.sky.test", "A AAAA TXT HINFO CNAME", "", ""},
		{"chain.sky.test chain2.sky.test", "A AAAA CNAME", "", ""},
		{"sky.test empty.test 10.in-addr.arpa", "SOA", "", ""},
		{"sky.test", "A AAAA NS HINFO", "", ""},
		{"self.sky.test", most, "", ""},
		{"self.sky.test", "CNAME", endless, "NOERROR [answer: ]"},
		{"1.0.0.10.in-addr.arpa 2.0.0.10.in-addr.arpa", "PTR A SRV MX HINFO", "", ""},
		{"one.sky.test mail.sky.test none.sky.test *.west.sky.test", "SOA", ofApex, "[answer: ] [authority: sky.test."},
		{"empty.test", most + " CNAME PTR", ofApex, "NOERROR [answer: ]"},
		{"pair.sky.test west.sky.test *.west.sky.test 10.in-addr.arpa", "CNAME PTR", noName, "NOERROR [answer: ]"},
		{"10.in-addr.arpa", "NS", noName, "NOERROR [answer: ]"},
		{"*.one.sky.test none.*.sky.test", most, noWildcard, "NXDOMAIN"},
		{"dangling.sky.test", "A AAAA TXT", chased, "NXDOMAIN [answer: dangling.sky.test. 300 IN CNAME none.sky.test.] [authority: sky.test."},
		{"missing.sky.test", "A AAAA TXT", chased, "NXDOMAIN [answer: missing.sky.test. 300 IN CNAME gone.example.test.]"},
		{"near.sky.test", "AAAA TXT", chased, "NOERROR [answer: near.sky.test. 300 IN CNAME one.sky.test.] [authority: sky.test."},
		{"chain.sky.test", "TXT", chased, "300 in cname pair.sky.test.] [authority: sky.test."},
		{"texted.sky.test", "A", chased, "noerror [answer: texted.sky.test. 300 in cname text.sky.test.] [authority: sky.test."},
		{"circle.sky.test circle2.sky.test", "A AAAA TXT", endless, "SERVFAIL"},
		{"mixed.sky.test", "A", oneAlias, "[answer: mixed.sky.test. 300 IN A 10.0.3.1]"},
		{"two.sky.test", "A", oneAlias, "[answer: one.sky.test. 60 IN A 10.0.0.1; two.sky.test. 300 IN CNAME one.sky.test.]"},
		{"mail.sky.test", "A", oneAlias, "[answer: mail.sky.test. 300 in a 10.0.5.1; mail.sky.test. 300 in a 10.0.5.2]"},
		{"mail.sky.test", "AAAA TXT", oneAlias, "NOERROR [answer: ]"},
		{"ttls.sky.test", "A", sameTTL, "[answer: ttls.sky.test. 20 IN A 10.0.2.3; ttls.sky.test. 20 IN A 10.0.2.4]"},
		{"two.sky.test", "SRV", noAlias, "pair.sky.test. 300 IN A 10.0.1.2; pair.sky.test. 300 IN AAAA 2001:db8::12]"},
		{"chain.sky.test", "SRV", noAlias, "[answer: chain.sky.test. 300 IN SRV 10 100 0 chain2.sky.test.] [authority: ] [additional: ]"},
		{"far.sky.test farther.sky.test a.mail.sky.test", "SRV", optional, "[additional: ]"},
		{"c.mail.sky.test", "MX", targetOf, "[additional: mail.sky.test. 300 IN A 10.0.5.1]"},
		{"both-kinds.sky.test", "A AAAA SRV MX HINFO NS CNAME", "", ""},
		{"both-kinds.sky.test", "TXT", hostAndText, `both-kinds.sky.test. 300 IN TXT "beside"`},
		{"named.sky.test", "TXT MX HINFO NS CNAME", "", ""},
		{"named.sky.test", "A", hostAndText, "named.sky.test. 300 IN CNAME one.sky.test.; one.sky.test. 60 IN A 10.0.0.1]"},
		{"named.sky.test", "AAAA", hostAndText, "[answer: named.sky.test. 300 IN CNAME one.sky.test.] [authority: sky.test."},
		{"named.sky.test", "SRV", hostAndText, "named.sky.test. 300 IN SRV 10 100 5 one.sky.test."},
		{"dns-a.sky.test", "A AAAA CNAME", anyType, "NOERROR [answer: dns-a.sky.test. 300 IN CNAME www.example.test."},
		{"two.sky.test", "CNAME", anyType, "[answer: two.sky.test. 300 IN CNAME one.sky.test.]"},
		{"even.sky.test", "TXT", noEmpty, strings.Repeat("y", 255) + `"] [authority`},
		{"backslash.sky.test", "TXT", noEmpty, `TXT "a\\b"]`},
		{"upper.sky.test UPPER.sky.test", "A", anyCase, "upper.sky.test. 300 IN A 10.9.1.1"},
	}
}
