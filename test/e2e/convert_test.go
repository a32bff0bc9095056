// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// exactCorefile has what the answers of a CoreDNS are made with, and counterparts for all of it.
const exactCorefile = `
(common) {
    errors
    cache 30
}

.:%[1]d {
    import common
    bind 127.0.0.1
    ready 127.0.0.1:%[2]d
    rewrite name exact shop.example.org a.example.org
    rewrite name suffix .old.example.org .new.example.org answer auto
    rewrite name exact alias.example.org cname.example.org
    rewrite name exact hosted.example.org db.example.org
    hosts {
        192.0.2.1 db.example.org DB2.example.org
        192.0.2.2 db.example.org
        2001:db8::1 db.example.org
        192.0.2.3 v4.example.org
        ttl 25
        fallthrough
    }
    template IN A ip.example.org {
        match ^ip-(?P<a>[0-9]*)-(?P<b>[0-9]*)\.ip\.example\.org\.$
        answer "{{ .Name }} 25 IN A 10.0.{{ .Group.a }}.{{ .Group.b }}"
        answer "{{ .Name }} 25 IN A 10.1.{{ index .Match 1 }}.{{ parseInt .Group.b 16 8 }}"
    }
    template ANY ANY blocked.example.org {
        rcode NXDOMAIN
        authority "blocked.example.org 25 IN SOA ns.blocked.example.org hm.blocked.example.org 1 60 60 60 60"
    }
    template IN MX example.org {
        match ^mail\.
        answer "{{ .Name }} 25 IN MX 10 mx.{{ .Zone }}"
        additional "mx.{{ .Zone }} 25 IN A 192.0.2.25"
        fallthrough
    }
    template IN TXT text.example.org {
        answer "{{ .Name }} 25 IN TXT \"{{ .Class }} {{ .Type }} {{ .Zone }}\""
    }
    forward . %[3]s {
        except refused.example.org
    }
}

other.example:%[1]d {
    import common
    bind 127.0.0.1
    forward . %[4]s
}
`

// upstreamRecords are what the upstream of the test knows, and otherRecords.
const upstreamRecords = `
example.org.           20 IN SOA ns.example.org. hm.example.org. 1 60 60 60 20
example.org.           20 IN NS ns.example.org.
a.example.org.         20 IN A 192.0.2.10
a.example.org.         20 IN AAAA 2001:db8::10
a.example.org.         20 IN TXT "upstream"
cname.example.org.     20 IN CNAME a.example.org.
only4.example.org.     20 IN A 192.0.2.40
only4.example.org.     20 IN A 192.0.2.41
x.new.example.org.     20 IN A 192.0.2.50
x.new.example.org.     20 IN AAAA 2001:db8::50
_s._tcp.new.example.org. 20 IN SRV 1 2 3 x.new.example.org.
prod.example.org.      20 IN A 192.0.2.60
prod.example.org.      20 IN AAAA 2001:db8::60
test-1.example.org.    20 IN A 192.0.2.61
a.refused.example.org. 20 IN A 192.0.2.70
`

const otherRecords = `
other.example.   20 IN SOA ns.other.example. hm.other.example. 1 60 60 60 20
other.example.   20 IN NS ns.other.example.
b.other.example. 20 IN A 192.0.2.80
`

// startUpstream serves the zones that the questions lead to.
func startUpstream(t *testing.T) string {
	t.Helper()
	addr := proctest.FreeAddr(t)
	reverse := "@ 20 IN SOA ns hm 1 60 60 60 20\n@ 20 IN NS ns.example.org.\n"
	proctest.StartNSD(t, addr, map[string]string{"example.org": upstreamRecords, "other.example": otherRecords, "in-addr.arpa": reverse})
	return addr.String()
}

// leftCorefile has what no rule of node-cache does: an expression, a wildcard, and a template before hosts.
const leftCorefile = `
.:%[1]d {
    bind 127.0.0.1
    ready 127.0.0.1:%[2]d
    rewrite name regex (.*)\.apps\.example\.org a.example.org answer auto
    rewrite name regex ^([a-z]+)-([a-z]+)\.swap\.example\.org\.$ {2}.{1}.example.org answer auto
    rewrite stop {
        name regex (.*)\.in\.example\.org {1}.new.example.org
        answer name (.*)\.new\.example\.org {1}.in.example.org
    }
    rewrite name prefix test prod answer auto
    template IN AAAA db.example.org {
        rcode NXDOMAIN
    }
    hosts {
        192.0.2.1 db.example.org
        2001:db8::1 db.example.org
        192.0.2.9 *.wild.example.org
        fallthrough
    }
    dns64 {
        allow_ipv4
    }
    forward . 127.0.0.1:%[3]d
    cache 30
}

.:%[3]d {
    bind 127.0.0.1
    forward . %[4]s
}

other.example:%[1]d {
    bind 127.0.0.1
    forward . %[4]s
    cache 30
}
`

// TestConvertedAnswersAsBefore asks a real CoreDNS with a Corefile and node-cache with what is converted of it the same
// questions.
func TestConvertedAnswersAsBefore(t *testing.T) {
	t.Parallel()
	program, err := kubetest.Program(t.Context(), "coredns")
	assert.NoError(t, err)
	upstream := startUpstream(t)
	t.Run("in its place", func(t *testing.T) {
		t.Parallel()
		text := func(port, ready int) string { return fmt.Sprintf(exactCorefile, port, ready, upstream, upstream) }
		compareAnswers(t, startCoreDNS(t, program, text), startConverted(t, text, "--replace"))
	})
	t.Run("beside it", func(t *testing.T) {
		t.Parallel()
		inner := freePort(t)
		text := func(port, ready int) string { return fmt.Sprintf(leftCorefile, port, ready, inner, upstream) }
		theirs := startCoreDNS(t, program, text)
		compareAnswers(t, theirs, startConverted(t, text, "--old-server", theirs))
	})
}

// compareAnswers asks both servers the same questions.
func compareAnswers(t *testing.T, theirs, ours string) {
	t.Helper()
	began := time.Now()
	for _, tt := range []struct{ name, types string }{
		{"a.example.org.", "A AAAA TXT MX"},
		{"only4.example.org.", "A AAAA"},
		{"cname.example.org.", "A AAAA CNAME"},
		{"shop.example.org.", "A AAAA TXT MX"},
		{"SHOP.Example.org.", "A"},
		{"x.old.example.org.", "A AAAA TXT"},
		{"_s._tcp.old.example.org.", "SRV"},
		{"nothing.old.example.org.", "A"},
		{"old.example.org.", "A"},
		{"x.in.example.org.", "A AAAA"},
		{"test.example.org.", "A AAAA"},
		{"test-1.example.org.", "A"},
		{"web.apps.example.org.", "A AAAA TXT"},
		{"WEB.v2.Apps.Example.org.", "A"},
		{"new-x.swap.example.org.", "A AAAA TXT"},
		{"example-nothing.swap.example.org.", "A"},
		{"alias.example.org.", "A"},
		{"hosted.example.org.", "A AAAA TXT"},
		{"db.example.org.", "A AAAA TXT"},
		{"db2.example.org.", "A AAAA"},
		{"v4.example.org.", "A AAAA"},
		{"1.2.0.192.in-addr.arpa.", "PTR"},
		{"3.2.0.192.in-addr.arpa.", "PTR"},
		{"4.2.0.192.in-addr.arpa.", "PTR"},
		{"one.wild.example.org.", "A AAAA TXT"},
		{"a.one.wild.example.org.", "A"},
		{"ip-3-16.ip.example.org.", "A TXT"},
		{"ip-3.ip.example.org.", "A"},
		{"blocked.example.org.", "A TXT MX"},
		{"a.blocked.example.org.", "A"},
		{"mail.example.org.", "MX"},
		{"text.example.org.", "TXT A"},
		{"a.refused.example.org.", "A"},
		{"nothing.example.org.", "A AAAA"},
		{"b.other.example.", "A TXT"},
		{"c.other.example.", "A"},
	} {
		for typ := range strings.FieldsSeq(tt.types) {
			for _, again := range []string{"", " again"} { // from the cache, then
				t.Run(tt.name+" "+typ+again, func(t *testing.T) {
					want, got := answerOf(t, theirs, tt.name, typ), answerOf(t, ours, tt.name, typ)
					if diff := cmp.Diff(want, got, sameTTLs(time.Since(began))); diff != "" {
						t.Errorf("answers (-CoreDNS +node-cache):\n%s", diff)
					}
				})
			}
		}
	}
}

// startCoreDNS runs CoreDNS with a Corefile, and returns where it answers.
func startCoreDNS(t *testing.T, program string, text func(port, ready int) string) string {
	t.Helper()
	port, ready := freePort(t), freePort(t)
	file := writeFile(t, filepath.Join(t.TempDir(), "Corefile"), text(port, ready))
	p := proctest.Start(t, "coredns", exec.Command(program, "-conf", file))
	proctest.Eventually(t, time.Minute, "CoreDNS is ready", func() bool {
		if p.Ended() {
			t.Fatalf("CoreDNS ended: %v\n%s", p.Err(), p.Stderr.String())
		}
		reply, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/ready", ready))
		if err != nil {
			return false
		}
		_ = reply.Body.Close()
		return reply.StatusCode == http.StatusOK
	})
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// startConverted runs node-cache with what its own command converts of the same Corefile, of which nothing is lost.
func startConverted(t *testing.T, text func(port, ready int) string, flag ...string) string {
	t.Helper()
	port, ready := freePort(t), freePort(t)
	file := writeFile(t, filepath.Join(t.TempDir(), "Corefile"), text(port, ready))
	converted, err := exec.Command(nodeCache, append([]string{"convert", file}, flag...)...).Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Fatalf("convert: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("convert: %v", err)
	}
	config := writeFile(t, filepath.Join(t.TempDir(), "node-cache.yaml"), string(converted))
	if text, err := exec.Command(nodeCache, "check", config).CombinedOutput(); err != nil {
		t.Fatalf("check: %v\n%s\n%s", err, text, converted)
	}
	return launchFile(t, settings{address: "127.0.0.1", port: port, admin: ready}, config).addr
}

// A visibleAnswer is what a client sees of an answer: its code, its name, and its records in order of their text, those that come
// beside the answer last.
type visibleAnswer struct {
	Code, Name string
	Records    []record
}

type record struct {
	Text string // with TTL 0
	TTL  ttl
}

type ttl uint32

// sameTTLs compares TTLs of answers that two caches have had for different times, none of them for longer than age. Either
// may round to the next second.
func sameTTLs(age time.Duration) cmp.Option {
	most := int64(age/time.Second) + 1
	return cmp.Comparer(func(a, b ttl) bool { return max(a, b)-min(a, b) <= ttl(most) })
}

// answerOf asks a server.
func answerOf(t *testing.T, server, name, typ string) visibleAnswer {
	t.Helper()
	q := new(dns.Msg).SetQuestion(name, dns.StringToType[typ])
	var r *dns.Msg
	var err error
	for range 3 { // a packet may be lost on a loaded machine
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		r, _, err = (&dns.Client{Timeout: 5 * time.Second}).ExchangeContext(ctx, q, server)
		cancel()
		if err == nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("asking %s: %v", server, err)
	}
	s := visibleAnswer{Code: dns.RcodeToString[r.Rcode], Name: r.Question[0].Name}
	for _, section := range [][]dns.RR{r.Answer, r.Extra} {
		var records []record
		for _, rr := range section {
			if rr.Header().Rrtype == dns.TypeOPT {
				continue
			}
			h, left := rr.Header(), rr.Header().Ttl
			h.Name, h.Ttl = strings.ToLower(h.Name), 0
			records = append(records, record{Text: rr.String(), TTL: ttl(left)})
		}
		slices.SortFunc(records, func(a, b record) int { return strings.Compare(a.Text, b.Text) })
		s.Records = append(s.Records, records...)
	}
	return s
}
