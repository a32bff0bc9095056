// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/tsig"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	tsigKey    = "key.example."
	tsigSecret = "c2VjcmV0IG9mIHRlc3Rz"
)

// signedPlan is transferPlan with a key. The zone's versions are kept.
func signedPlan(t *testing.T, s *zone.Store, log *strings.Builder) *resolve.Plan {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	assert.NoError(t, os.WriteFile(path, fmt.Appendf(nil, "key %q { algorithm hmac-sha256; secret %q; };", tsigKey, tsigSecret), 0o600))
	p := transferPlan(t, s)
	var err error
	p.Keys, err = tsig.New(path, slog.New(slog.NewTextHandler(log, nil)))
	assert.NoError(t, err)
	s.Versions().Keep(p.Zones, time.Now())
	return p
}

// sendSigned signs a query, sends it and verifies the reply's signatures. It returns the messages of the reply.
func (f *transferClient) sendSigned(t *testing.T, r *resolve.Resolver, q *dns.Msg, secret, from string, stream bool) (list []*dns.Msg, err error) {
	t.Helper()
	pkt, mac, err := dns.TsigGenerate(q.SetTsig(tsigKey, dns.HmacSHA256, 300, time.Now().Unix()), secret, "", false)
	assert.NoError(t, err)
	for i, msg := range f.send(r, pkt, from, stream) {
		m := unpack(t, msg)
		list = append(list, m)
		if m.IsTsig() == nil {
			return list, dns.ErrNoSig
		}
		if err := dns.TsigVerify(msg, tsigSecret, mac, i > 0); err != nil {
			return list, err
		}
		mac = m.IsTsig().MAC
	}
	return list, nil
}

// send sends a packet and returns the messages of the reply.
func (f *transferClient) send(r *resolve.Resolver, pkt []byte, from string, stream bool) [][]byte {
	peer, now := wire.Peer{Addr: netip.AddrPortFrom(netip.MustParseAddr(from), 4567), Stream: stream}, time.Now()
	worker := r.NewWorker()
	defer func() { worker.Flush(time.Now()) }()
	reply, verdict := worker.AnswerFromMemory(pkt, &peer, now, nil)
	if verdict != wire.Missed {
		return [][]byte{reply}
	}
	worker.Resolve(&peer, now, f)
	<-f.done
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.msgs
}

// TestSignedQueries has clients with a right, a wrong and no key. Every reply to a right one is signed.
func TestSignedQueries(t *testing.T) {
	s := shop(time.Now())
	inSync(s)
	var log strings.Builder
	r := newResolver(t, signedPlan(t, s, &log))
	soa := new(dns.Msg).SetQuestion("cluster.local.", dns.TypeSOA)
	const friend, stranger = "192.0.2.15", "192.0.2.16"
	for _, tt := range []struct {
		name, from, secret string
		q                  *dns.Msg
		stream             bool
		want               string
		err                error
	}{
		{name: "AXFR", from: friend, secret: tsigSecret, q: axfr(), stream: true, want: "zone"},
		{name: "AXFR with EDNS", from: friend, secret: tsigSecret, q: axfr().SetEdns0(1232, true), stream: true, want: "zone"},
		{name: "IXFR", from: friend, secret: tsigSecret, q: ixfr(1), stream: true, want: "zone"},
		{name: "IXFR over UDP", from: friend, secret: tsigSecret, q: ixfr(1), want: "SOA"},
		{name: "AXFR over UDP", from: friend, secret: tsigSecret, q: axfr(), want: "REFUSED"},
		{name: "AXFR of another zone", from: friend, secret: tsigSecret, q: new(dns.Msg).SetAxfr("example.com."), stream: true, want: "NOTAUTH", err: dns.ErrAuth},
		{name: "SOA", from: friend, secret: tsigSecret, q: soa, want: "SOA"},
		{name: "a name outside", from: friend, secret: tsigSecret, q: new(dns.Msg).SetQuestion("example.com.", dns.TypeA), want: "REFUSED"},
		{name: "wrong secret", from: friend, secret: "b3RoZXI=", q: axfr(), stream: true, want: "NOTAUTH", err: dns.ErrAuth},
		{name: "wrong secret, SOA", from: friend, secret: "b3RoZXI=", q: soa, want: "NOTAUTH", err: dns.ErrAuth},
		{name: "a client that may transfer nothing", from: stranger, secret: tsigSecret, q: axfr(), stream: true, want: "REFUSED", err: dns.ErrNoSig},
		{name: "its ordinary query", from: stranger, secret: "b3RoZXI=", q: soa, want: "SOA", err: dns.ErrNoSig},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list, err := newFar().sendSigned(t, r, tt.q.Copy(), tt.secret, tt.from, tt.stream)
			if err != tt.err { //nolint:errorlint // miekg/dns returns it as it is
				t.Errorf("verifying: %v, want %v", err, tt.err)
			}
			got := dns.RcodeToString[list[0].Rcode]
			switch records := len(list[0].Answer); {
			case records > 1:
				got = "zone"
			case records == 1:
				got = dns.TypeToString[list[0].Answer[0].Header().Rrtype]
			}
			assert.Equal(t, "reply", tt.want, got)
		})
	}
	if m := unpack(t, newFar().send(r, pack(t, axfr()), friend, true)[0]); m.Rcode != dns.RcodeRefused {
		t.Errorf("unsigned AXFR: %s, want REFUSED", dns.RcodeToString[m.Rcode])
	}
	for _, want := range []string{"BADSIG", "not signed"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, &log)
		}
	}
}

// TestSignedShed has more transfers than run at once: the others get a signed SERVFAIL.
func TestSignedShed(t *testing.T) {
	t.Parallel()
	s := bigCluster(400, 0, time.Now())
	r := newResolver(t, signedPlan(t, s, new(strings.Builder)))
	block, begun := make(chan struct{}), make(chan struct{})
	var running sync.WaitGroup
	for range 4 {
		f := newFar()
		first := true
		f.more = func([]byte) bool {
			if first {
				first = false
				begun <- struct{}{}
				<-block
			}
			return true
		}
		running.Go(func() {
			if _, err := f.sendSigned(t, r, axfr(), tsigSecret, "127.0.0.1", true); err != nil {
				t.Error(err)
			}
		})
		<-begun
	}
	list, err := newFar().sendSigned(t, r, axfr(), tsigSecret, "127.0.0.1", true)
	assert.NoError(t, err)
	assert.Equal(t, "rcode", dns.RcodeServerFailure, list[0].Rcode)
	close(block)
	running.Wait()
}

// TestIncrementalTransfer gets a change after the whole zone, and counts both.
func TestIncrementalTransfer(t *testing.T) {
	t.Parallel()
	s := shop(time.Now())
	inSync(s)
	r := newResolver(t, signedPlan(t, s, new(strings.Builder)))
	list, err := newFar().sendSigned(t, r, axfr(), tsigSecret, "127.0.0.1", true)
	assert.NoError(t, err)
	held := list[0].Answer[0].(*dns.SOA).Serial
	s.PutService(zone.Service{Namespace: "shop", Name: "added", Type: zone.ExternalName, ExternalName: "example.com", TTL: -1}, time.Now())
	s.Versions().Cut(time.Now())
	list, err = newFar().sendSigned(t, r, ixfr(held), tsigSecret, "127.0.0.1", true)
	assert.NoError(t, err)
	var got []string
	for _, rr := range list[0].Answer {
		got = append(got, dns.TypeToString[rr.Header().Rrtype])
	}
	assert.Same(t, "records", []string{"SOA", "SOA", "SOA", "CNAME", "SOA"}, got)
	assert.Equal(t, "full and incremental", [2]uint64{1, 1}, r.Stats().Transfers)
}
