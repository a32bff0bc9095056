// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
)

// A CoreDNS is a running CoreDNS.
type CoreDNS struct {
	addr    netip.AddrPort
	process *process
}

// StartCoreDNS runs CoreDNS for a test and returns where it answers, over UDP and TCP. [Cluster.LaunchCoreDNS] says
// what belongs into the Corefile.
func StartCoreDNS(tb testing.TB, c *Cluster, corefile string) netip.AddrPort {
	tb.Helper()
	s, err := c.LaunchCoreDNS(tb.Context(), tb.TempDir(), corefile)
	if err != nil {
		tb.Fatalf("starting CoreDNS: %v", err)
	}
	tb.Cleanup(func() {
		s.Close()
		if tb.Failed() {
			tb.Log(s.process.logTail())
		}
	})
	return s.addr
}

// LaunchCoreDNS runs CoreDNS with its output in dir and waits until every plugin is ready, which for the plugin
// kubernetes means that it has the cluster's objects. Its plugins are bind, cache, dns64, errors, forward, hosts, kubernetes,
// ready, rewrite, template and transfer. A zone without a port is served on a free one. The Corefile must say
//
//	bind 127.0.0.1
//	ready {$READY}
//
// and may say, where it is to ask the API server as [Admin],
//
//	kubernetes cluster.local in-addr.arpa ip6.arpa {
//		kubeconfig {$KUBECONFIG}
//	}
func (c *Cluster) LaunchCoreDNS(ctx context.Context, dir, corefile string) (*CoreDNS, error) {
	for _, directive := range []string{"bind 127.0.0.1", "ready {$READY}"} {
		if !strings.Contains(corefile, directive) {
			return nil, fmt.Errorf("reading a Corefile: it does not say %q", directive)
		}
	}
	addr, err := proctest.ReservePort(ctx)
	if err != nil {
		return nil, err
	}
	ready, err := proctest.ReservePort(ctx)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "Corefile")
	if err := os.WriteFile(path, []byte(corefile), 0o600); err != nil {
		return nil, fmt.Errorf("writing a Corefile: %w", err)
	}
	env := []string{"READY=" + ready.String(), "KUBECONFIG=" + c.Kubeconfig(Admin)}
	p, err := startProcess(ctx, dir, "coredns", env,
		c.options.Programs.CoreDNS, "-conf", path, "-dns.port", fmt.Sprint(addr.Port()))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	// It can be ready before it listens.
	for _, condition := range []func(context.Context) error{get("http://" + ready.String() + "/ready"), answers(addr)} {
		if err := p.waitUntil(ctx, readyPoll, condition); err != nil {
			p.kill()
			return nil, err
		}
	}
	return &CoreDNS{addr: addr, process: p}, nil
}

// get is the condition that a GET of the URL answers with status 200.
func get(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			return err
		}
		defer func() { _ = r.Body.Close() }()
		text, err := io.ReadAll(r.Body)
		if err == nil && r.StatusCode != http.StatusOK {
			err = fmt.Errorf("answered %d %s", r.StatusCode, text)
		}
		return err
	}
}

// answers is the condition that a DNS query gets any answer, over UDP and over TCP.
func answers(addr netip.AddrPort) func(context.Context) error {
	const query = "\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x01" // . NS IN
	return func(ctx context.Context) error {
		if err := exchange(ctx, "udp4", addr, query); err != nil {
			return err
		}
		return exchange(ctx, "tcp4", addr, "\x00\x11"+query) // its length goes ahead
	}
}

// exchange sends something and waits for the beginning of an answer.
func exchange(ctx context.Context, network string, addr netip.AddrPort, query string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr.String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, query); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 512))
	return err
}

// Addr returns where it answers, over UDP and TCP.
func (s *CoreDNS) Addr() netip.AddrPort { return s.addr }

// PID returns its process number.
func (s *CoreDNS) PID() int { return s.process.cmd.Process.Pid }

// Close ends it.
func (s *CoreDNS) Close() { s.process.kill() }
