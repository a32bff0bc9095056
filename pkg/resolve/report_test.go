// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	collector "github.com/dnstap/golang-dnstap"
	"github.com/miekg/dns"
	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/dnstap"
	"github.com/nodecache/node-cache/pkg/names/localdata"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

// TestWatchers has watchers with one filter each, beside a query log without queries.
func TestWatchers(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "www.test. 300 IN A 192.0.2.1", "a.sub.test. 300 IN A 192.0.2.1", "xsub.test. 300 IN A 192.0.2.1")
	u.mangle = func(m *dns.Msg) {
		if m.Question[0].Name == "gone.test." {
			m.Rcode = dns.RcodeNameError
		}
	}
	p := plan(t, u)
	p.Watchers, p.Pods = new(resolve.Watchers), pods.NewIndex(time.Minute, nil)
	p.QueryLog = &resolve.QueryLog{Slow: time.Second}
	r := newResolver(t, p)
	pod, other := newClient(r, false), newClient6(r)
	p.Pods.Put(&pods.Pod{Namespace: "shop", Name: "web", Addrs: []netip.Addr{pod.from.Addr.Addr()}})
	admitted, ends := 0, []func(){}
	tests := []struct {
		name   string
		filter resolve.Filter
		want   string
		log    bytes.Buffer
	}{
		{name: "all", want: "www.test. www.test. a.sub.test. xsub.test. gone.test."},
		{name: "of a pod", filter: resolve.Filter{Namespace: "shop", Pod: "web"}, want: "www.test. a.sub.test. gone.test."},
		{name: "of another pod", filter: resolve.Filter{Namespace: "shop", Pod: "we"}},
		{name: "of a namespace", filter: resolve.Filter{Namespace: "shop"}, want: "www.test. a.sub.test. gone.test."},
		{name: "of another namespace", filter: resolve.Filter{Namespace: "sho"}},
		{name: "below a domain", filter: resolve.Filter{Domain: []byte("\x03sub\x04test\x00")}, want: "a.sub.test."},
		{name: "an rcode", filter: resolve.Filter{Rcode: "NXDOMAIN"}, want: "gone.test."},
		{name: "a source", filter: resolve.Filter{Source: "cache"}, want: "www.test."},
	}
	for i := range tests {
		tt := &tests[i]
		tt.filter.Admit = func() bool { return true }
		if i == 0 {
			tt.filter.Admit = func() bool { admitted++; return admitted != 3 }
			tt.want = strings.Replace(tt.want, "a.sub.test. ", "", 1)
		}
		end, ok := p.Watchers.Add(&resolve.QueryLog{All: true, Filter: &tt.filter, TypeName: typeName, Log: slog.New(slog.NewTextHandler(&tt.log, nil))})
		assert.Equal(t, tt.name+": accepted", true, ok)
		ends = append(ends, end)
	}
	_, ok := p.Watchers.Add(&resolve.QueryLog{})
	assert.Equal(t, "a ninth: accepted", false, ok)
	pod.exchange(t, pack(t, question("www.test.", dns.TypeA)))
	other.exchange(t, pack(t, question("WWW.test.", dns.TypeA)))
	pod.exchange(t, pack(t, question("a.sub.test.", dns.TypeA)))
	other.exchange(t, pack(t, question("xsub.test.", dns.TypeA)))
	pod.exchange(t, pack(t, question("gone.test.", dns.TypeA)))
	for _, end := range ends {
		end()
	}
	pod.exchange(t, pack(t, question("late.test.", dns.TypeA)))
	for i := range tests {
		tt := &tests[i]
		var names []string
		for _, match := range regexp.MustCompile(`name=(\S+)`).FindAllStringSubmatch(tt.log.String(), -1) {
			names = append(names, strings.ToLower(match[1]))
		}
		assert.Equal(t, tt.name, tt.want, strings.Join(names, " "))
	}
}

// collectExtras runs a dnstap collector and returns a tap to it, and the extra texts of the replies to clients.
func collectExtras(t *testing.T) (*dnstap.Tap, <-chan string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	tap, extras := dnstap.New("node1", "v1", nil), make(chan string)
	tap.Send("tcp://" + l.Addr().String())
	ctx, stop := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = tap.Run(ctx) })
	t.Cleanup(func() {
		stop()
		run.Wait()
		_ = l.Close()
	})
	conn, err := l.Accept()
	assert.NoError(t, err)
	in, err := collector.NewFrameStreamInput(conn, true)
	assert.NoError(t, err)
	frames := make(chan []byte, 100)
	go in.ReadInto(frames)
	go func() {
		for frame := range frames {
			var d collector.Dnstap
			if proto.Unmarshal(frame, &d) == nil && d.Message.GetType() == collector.Message_CLIENT_RESPONSE {
				extras <- string(d.Extra)
			}
		}
	}()
	return tap, extras
}

// TestDetails has the explanation, the query log and the dnstap message of each reply say the same.
func TestDetails(t *testing.T) {
	t.Parallel()
	store := shop(time.Now())
	inSync(store)
	p := clusterPlan(t, store, true)
	local(p)
	tap, extras := collectExtras(t)
	p.Cut, p.LocalData, p.Tap = true, fixed(t, map[string]string{"one.hosts": "192.0.2.77"}, "blocked.test.: . TXT x"), tap
	p.Pods = pods.NewIndex(time.Minute, nil)
	p.Pods.Put(&pods.Pod{Namespace: "shop", Name: "web", Addrs: []netip.Addr{netip.MustParseAddrPort(near).Addr()}})
	failing, garbled := newUpstream(t), newUpstream(t)
	failing.err = coded(wire.EDENoReachableAuthority)
	garbled.mangle = func(m *dns.Msg) { m.Rcode = dns.RcodeNotZone }
	for zone, to := range map[string]resolve.Asker{"failing.test.": failing, "garbled.test.": garbled, "onion.": localdata.SpecialZones("onion")[0]} {
		p.Routes = append(p.Routes, resolve.Route{Suffix: wireName(t, zone), Upstream: to, TTL: bounds()})
	}
	var log bytes.Buffer
	p.QueryLog = &resolve.QueryLog{All: true, TypeName: typeName, Log: slog.New(slog.NewTextHandler(&log, nil))}
	r := newResolver(t, p)
	for _, tt := range []struct{ name, source, want, ede string }{
		{name: "db.example.", source: "upstream", want: "upstream=udp://192.0.2.53:53"},
		{name: "db.example.", source: "cache"},
		{name: "none.shop.svc.cluster.local.", source: "zone", want: "denied=no_service"},
		{name: "none.none.svc.cluster.local.", source: "zone", want: "denied=no_namespace"},
		{name: "gone.example.com.", source: "upstream", want: "upstream=udp://192.0.2.53:53"},
		{name: "www.gone.example.com.", source: "cache", want: "below=gone.example.com."},
		{name: "one.hosts.", source: "static", want: "rule=hosts.names"},
		{name: "www.blocked.test.", source: "static", want: "rule=templates[0]"},
		{name: "a.failing.test.", source: "failure", want: "upstream=udp://192.0.2.53:53 failure=timeout", ede: `ede=22 ede_text="No Reachable Authority"`},
		{name: "a.failing.test.", source: "failure", ede: `ede=13 ede_text="Cached Error"`},
		{name: "a.garbled.test.", source: "failure", want: "upstream=udp://192.0.2.53:53 failure=unusable", ede: `ede=22 ede_text="No Reachable Authority"`},
		{name: "www.onion.", source: "upstream", want: "rule=specialNames"},
		{name: "www.onion.", source: "cache", want: "rule=specialNames"},
	} {
		log.Reset()
		explained := explanations(t, r, wish(tt.name))
		words := strings.TrimSpace("source=" + tt.source + " " + tt.want)
		if len(explained) != 1 || !strings.HasPrefix(explained[0]+" ", words+" ") {
			t.Errorf("%s: explained %q, want %q", tt.name, explained, words)
		}
		_, logged, _ := strings.Cut(log.String(), "pod_stale=true")
		assert.Equal(t, tt.name+": logged", strings.Join(strings.Fields(tt.want+" "+tt.ede), " "), strings.TrimSpace(logged))
		assert.Equal(t, tt.name+": in dnstap", strings.TrimSpace("pod=shop/web "+tt.want), <-extras)
	}
}

// BenchmarkAnswerFromMemoryWatched is a hit while watchers select it, which each get 1,000 queries a second, or other queries.
func BenchmarkAnswerFromMemoryWatched(b *testing.B) {
	for _, bb := range []struct {
		name   string
		number int
		filter resolve.Filter
	}{
		{name: "none"},
		{"1, another name", 1, resolve.Filter{Domain: []byte("\x05other\x04test\x00")}},
		{"8, another name", 8, resolve.Filter{Domain: []byte("\x05other\x04test\x00")}},
		{"8, another pod", 8, resolve.Filter{Namespace: "shop", Pod: "web"}},
		{"1, all", 1, resolve.Filter{}},
		{"8, all", 8, resolve.Filter{}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			p := plan(b, newUpstream(b, "www.test. 300 IN A 192.0.2.1"))
			p.Watchers, p.Pods = new(resolve.Watchers), pods.NewIndex(time.Minute, nil)
			for range bb.number {
				filter := bb.filter
				filter.Admit = rate.NewLimiter(1000, 100).Allow
				p.Watchers.Add(&resolve.QueryLog{All: true, Filter: &filter, TypeName: typeName, Log: slog.New(slog.DiscardHandler)})
			}
			c, q := newClient(newResolver(b, p), false), pack(b, question("www.test.", dns.TypeA))
			c.exchange(b, q)
			dst, now := make([]byte, 0, 4096), time.Now()
			b.ReportAllocs()
			for b.Loop() {
				c.worker.AnswerFromMemory(q, &c.from, now, dst)
			}
		})
	}
}
