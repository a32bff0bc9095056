// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

func TestTargetCheck(t *testing.T) {
	t.Parallel()
	authorities, empty := filepath.Join(t.TempDir(), "ca.pem"), filepath.Join(t.TempDir(), "empty.pem")
	upstreamtest.NewAuthority(t, time.Now()).Trust(t, authorities)
	pipe := filepath.Join(t.TempDir(), "pipe")
	assert.NoError(t, errors.Join(os.WriteFile(empty, nil, 0o600), syscall.Mkfifo(pipe, 0o600)))
	tests := []struct {
		name   string
		target Target
		want   string // in the error; empty: none
	}{
		{name: "UDP", target: Target{Network: "udp", Addr: peer}},
		{name: "TCP", target: Target{Network: "tcp", Addr: peer}},
		{name: "TLS by address", target: Target{Network: "tls", Addr: peer}},
		{name: "TLS by name", target: Target{Network: "tls", Addr: peer, Name: "dns.example", CAFile: authorities}},
		{name: "HTTPS", target: Target{Network: "https", Addr: peer}},
		{name: "HTTPS in full", target: Target{Network: "https", Addr: peer, Name: "dns.example", CAFile: authorities, Path: "/q", Method: "GET"}},
		{name: "no network", target: Target{Addr: peer}, want: `network ""`},
		{name: "no address", target: Target{Network: "tls"}, want: "address"},
		{name: "no port", target: Target{Network: "tls", Addr: netip.AddrPortFrom(peer.Addr(), 0)}, want: "address"},
		{name: "no file", target: Target{Network: "tls", Addr: peer, CAFile: authorities + ".not"}, want: "no such file"},
		{name: "an empty file", target: Target{Network: "tls", Addr: peer, CAFile: empty}, want: "no certificate"},
		{name: "a pipe", target: Target{Network: "tls", Addr: peer, CAFile: pipe}, want: "not a regular file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			switch err := tt.target.check(); {
			case err == nil && tt.want != "":
				t.Errorf("no error, want one with %q", tt.want)
			case err != nil && (tt.want == "" || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
		})
	}
}
