// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/proctest"
)

// A CoreDNS is a running CoreDNS.
type CoreDNS struct {
	addr, ready netip.AddrPort
	process     *proctest.Process
	command     func(context.Context) *exec.Cmd
}

// StartCoreDNS runs CoreDNS for a test and waits until every plugin is ready, which for the plugin
// kubernetes means that it has the cluster's objects. Its plugins are autopath, bind, cache, dns64, errors, forward, hosts, kubernetes,
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
func StartCoreDNS(t *testing.T, c *Cluster, corefile string) *CoreDNS {
	t.Helper()
	for _, directive := range []string{"bind 127.0.0.1", "ready {$READY}"} {
		if !strings.Contains(corefile, directive) {
			t.Fatalf("the Corefile does not say %q", directive)
		}
	}
	dir := t.TempDir()
	path := proctest.WriteFile(t, filepath.Join(dir, "Corefile"), corefile)
	s := &CoreDNS{addr: proctest.FreeAddr(t), ready: proctest.FreeAddr(t)}
	s.command = func(ctx context.Context) *exec.Cmd {
		cmd := command(ctx, "coredns", dir, c.Programs.CoreDNS, "-conf", path, "-dns.port", fmt.Sprint(s.addr.Port()))
		cmd.Env = append(os.Environ(), "READY="+s.ready.String(), "KUBECONFIG="+c.Kubeconfig(Admin))
		return cmd
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatalf("starting CoreDNS: %v", err)
	}
	t.Cleanup(func() {
		s.Close()
		if t.Failed() {
			t.Logf("CoreDNS: %s", s.process.Tail(12))
		}
	})
	return s
}

// Start starts it again after Close, at the same address, and waits until every plugin is ready.
func (s *CoreDNS) Start(ctx context.Context) (err error) {
	if s.process, err = proctest.Launch("coredns", s.command(ctx)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	// It can be ready before it listens.
	err = s.process.Await(ctx, readyPoll, func(ctx context.Context) error {
		return errors.Join(proctest.Get(ctx, "http://"+s.ready.String()+"/ready"), proctest.Ask(ctx, "udp", s.addr), proctest.Ask(ctx, "tcp", s.addr))
	})
	if err != nil {
		s.process.Kill()
	}
	return err
}

// Addr returns where it answers, over UDP and TCP.
func (s *CoreDNS) Addr() netip.AddrPort { return s.addr }

// Close ends it.
func (s *CoreDNS) Close() { s.process.Kill() }
