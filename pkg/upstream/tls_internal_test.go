// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/remote"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// secure gives the server a certificate for the hosts and returns the CA file.
func secure(tb testing.TB, s *upstreamtest.Server, hosts ...string) string {
	tb.Helper()
	authority := upstreamtest.NewAuthority(tb, time.Now())
	s.Secure(authority.Issue(tb, time.Now().Add(24*time.Hour), hosts...))
	path := filepath.Join(tb.TempDir(), "ca.pem")
	authority.Trust(tb, path)
	return path
}

// An upstream without a valid certificate gets no query, over TLS and HTTPS, and LastError gives the reason.
func TestTLSClient(t *testing.T) {
	t.Parallel()
	const name = "dns.example"
	tests := []struct {
		name  string
		asked string        // name of the target
		hosts []string      // in the certificate
		ends  time.Duration // expiry of the certificate, from now
		other bool          // the CA file has another authority
		plain bool          // the server speaks no TLS
		want  string        // in LastError; empty: success
	}{
		{name: "the right name", asked: name, hosts: []string{name}, ends: time.Hour},
		{name: "the right address", hosts: []string{peer.Addr().String()}, ends: time.Hour},
		{name: "another name", asked: name, hosts: []string{"dns.other.example"}, ends: time.Hour, want: "not dns.example"},
		{name: "an address for a name", asked: name, hosts: []string{peer.Addr().String()}, ends: time.Hour, want: "dns.example"},
		{name: "another address", hosts: []string{"192.0.2.99"}, ends: time.Hour, want: "192.0.2.1"},
		{name: "a name for an address", hosts: []string{name}, ends: time.Hour, want: "192.0.2.1"},
		{name: "expired", asked: name, hosts: []string{name}, ends: -time.Second, want: "expired"},
		{name: "another authority", asked: name, hosts: []string{name}, ends: time.Hour, other: true, want: "authority"},
		{name: "no TLS", asked: name, plain: true, want: "TLS"},
		{name: "many long names", asked: name, hosts: longHosts(90), ends: time.Hour, want: "(cut, "},
	}
	for _, tt := range tests {
		for _, network := range []string{"tls", "https"} {
			t.Run(tt.name+" "+network, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					authority, trusted := upstreamtest.NewAuthority(t, time.Now()), filepath.Join(t.TempDir(), "ca.pem")
					authority.Trust(t, trusted)
					if tt.other {
						upstreamtest.NewAuthority(t, time.Now()).Trust(t, trusted)
					}
					s := upstreamtest.New(answerOrRefuse)
					dial := upstreamtest.Network{peer: s}.Dial
					if tt.plain {
						dial = plainTextPeer
					} else {
						s.Secure(authority.Issue(t, time.Now().Add(tt.ends), tt.hosts...))
					}
					h := newHarness(t, Target{Network: network, Addr: peer, Name: tt.asked, CAFile: trusted}, 1, dial)
					want, asked := "192.0.2.10", 1
					if tt.want != "" {
						want, asked = "tls", 0
					}
					assert.Equal(t, "got", want, h.ask(t))
					assert.Equal(t, "queries to the server", asked, len(s.Queries()))
					last := h.transport.(*connPool).lastError()
					if (last != nil) != (tt.want != "") || last != nil && (!strings.Contains(last.Error(), tt.want) || len(last.Error()) > remote.MaxText) {
						t.Errorf("last error %v, want %q in it, and at most %d bytes", last, tt.want, remote.MaxText)
					}
				})
			})
		}
	}
}

// longHosts returns names of some 200 bytes. An error about a certificate lists all of them.
func longHosts(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf("n%d.%s.example", i, strings.Repeat(strings.Repeat("x", 60)+".", 2)+strings.Repeat("x", 60)))
	}
	return list
}

// plainTextPeer connects to a peer that speaks another protocol.
func plainTextPeer(context.Context, string, netip.AddrPort) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go func() {
		defer func() { _ = theirs.Close() }()
		_, _ = theirs.Read(make([]byte, 4096))
		_, _ = theirs.Write([]byte("220 mail.example ESMTP\r\n"))
	}()
	return ours, nil
}

// A CA file that changes at run time applies from the next handshake on, and older sessions are not resumed. An
// invalid file changes nothing.
func TestTLSClientCARotation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
			a := answerOrRefuse(q)
			a.Raw = []upstreamtest.Raw{upstreamtest.Forged}
			a.Close = true // each query needs a handshake
			return a
		})
		h := newHarness(t, Target{Network: "tls", Addr: peer, CAFile: secure(t, s, peer.Addr().String())}, 1, upstreamtest.Network{peer: s}.Dial)
		path := h.transport.(*connPool).tlsClient.caFile
		step := func(what, want string, resumed int) {
			t.Helper()
			// Connections opened in advance may have used the previous CA file.
			h.transport.(*connPool).mu.Lock()
			for _, c := range append([]*conn(nil), h.transport.(*connPool).conns...) {
				c.failLocked(errAged)
			}
			h.transport.(*connPool).mu.Unlock()
			synctest.Wait()
			before := int(h.count.resumed.Load())
			assert.Equal(t, what, want, h.ask(t))
			synctest.Wait()
			if got := int(h.count.resumed.Load()); got-before < resumed || resumed == 0 && got != before && want != "192.0.2.66" {
				t.Errorf("%s: %d connections resumed, want %d", what, got-before, resumed)
			}
		}
		step("at first", "192.0.2.66", 0)
		step("again", "192.0.2.66", 1)
		next := upstreamtest.NewAuthority(t, time.Now())
		s.Secure(next.Issue(t, time.Now().Add(time.Hour), peer.Addr().String()))
		step("the server is ahead", "tls", 0)
		next.Trust(t, path)
		step("the file has followed", "192.0.2.66", 0)
		step("again", "192.0.2.66", 1)
		assert.NoError(t, os.WriteFile(path, []byte("no certificate"), 0o600))
		step("the file is spoilt", "192.0.2.66", 1)
		if got := s.Resumed(); got != int(h.count.resumed.Load()) {
			t.Errorf("the server counts %d connections resumed, we %d", got, h.count.resumed.Load())
		}
	})
}

// Each version of an invalid CA file is logged once, not once per connection.
func TestTLSClientWarnsOnce(t *testing.T) {
	t.Parallel()
	var lines bytes.Buffer
	path := filepath.Join(t.TempDir(), "ca.pem")
	upstreamtest.NewAuthority(t, time.Now()).Trust(t, path)
	c := newCommon(Config{Log: slog.New(slog.NewTextHandler(&lines, nil))})
	trust := newTLSClient(c, Target{Network: "tls", Addr: peer, CAFile: path}, &counters{}, "dot")
	for i, text := range []string{"", "not a certificate", "nor is this one"} {
		if text != "" {
			assert.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		}
		for range 3 {
			if _, err := trust.current(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		assert.Equal(t, fmt.Sprintf("complaints after %q", text), i, strings.Count(lines.String(), "CA file unusable"))
	}
}
