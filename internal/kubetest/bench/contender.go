// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// loopback is the address of every server.
const loopback = "127.0.0.1"

// A instance is where one start of a server happens.
type instance struct {
	dir        string // its folder, empty at the start
	conf       string // path of its configuration
	port       int    // for queries
	admin      int    // for the question whether it is ready
	kubeconfig string // leads to the API server through a proxy
}

// A contender is a server of the cluster zone that is measured.
type contender struct {
	name   string
	user   string // as whom it asks the API server
	ours   bool
	config func(s instance) string
	argv   func(b *bench, s instance) []string
	ready  string // path of the URL that answers 200 once it is ready
	apart  string // part of the run in which it runs; empty: all
}

// The parts of the run: the servers one by one, and the API server's traffic.
const (
	serveOnly = "serve"
	costOnly  = "cost"
)

// kubeProxyName is also how kube-proxy calls itself to the API server.
const kubeProxyName = "kube-proxy"

// contenders returns every one, in the order in which they run and are reported.
func contenders() []contender {
	ours := func(name, command, endpoints, apart string) contender {
		return contender{
			name: name, user: "bench-" + command + "-" + endpoints, ours: true, ready: "/readyz", apart: apart,
			config: func(s instance) string { return nodeCacheConfig(s, endpoints) },
			argv:   func(b *bench, s instance) []string { return []string{b.opts.nodeCache, command, "--config", s.conf} },
		}
	}
	return []contender{
		ours("agent-headless", "agent", "headless", ""),
		ours("agent-all", "agent", "all", ""),
		ours("resolver-headless", "resolver", "headless", serveOnly),
		ours("resolver-all", "resolver", "all", serveOnly),
		{
			name: "coredns", user: "bench-coredns", ready: "/ready", config: corefile,
			argv: func(b *bench, s instance) []string { return []string{b.programs.CoreDNS, "-quiet", "-conf", s.conf} },
		},
		{name: kubeProxyName, user: kubetest.Admin, apart: costOnly}, // kubetest starts it
	}
}

func contenderNames() []string {
	all := contenders()
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.name
	}
	return names
}

// nodeCacheConfig answers the zone locally; nobody else can be asked.
func nodeCacheConfig(s instance, endpoints string) string {
	return fmt.Sprintf(`apiVersion: node-cache.io/v1alpha1
kind: Config
listen: {addresses: [%[1]s], port: %[2]d}
forward:
- {zone: ".", to: ["%[1]s:9"]}
cluster: {resolver: local, kubeconfig: %[3]q, endpoints: %[4]s}
admin: {address: "%[1]s:%[5]d"}
log: {level: warn, format: text}
`, loopback, s.port, s.kubeconfig, endpoints, s.admin)
}

// corefile is what kubeadm gives to CoreDNS, without what only observes: health, loop, loadbalance, prometheus and
// reload.
func corefile(s instance) string {
	return fmt.Sprintf(`.:%[2]d {
    errors
    bind %[1]s
    ready %[1]s:%[3]d
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        kubeconfig %[4]s
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }
    forward . %[1]s:9 {
        max_concurrent 1000
    }
    cache 30 {
        disable success cluster.local
        disable denial cluster.local
    }
}
`, loopback, s.port, s.admin, s.kubeconfig)
}

// newInstance makes the place for one start of a contender, behind a proxy.
func (b *bench) newInstance(ctx context.Context, c contender, p *kubetest.Proxy) (instance, error) {
	b.starts++
	s := instance{dir: filepath.Join(b.dir, fmt.Sprintf("%s-%d", c.name, b.starts))}
	s.conf = filepath.Join(s.dir, "config.yaml")
	var err error
	if s.port, err = freePort(ctx); err != nil {
		return instance{}, err
	}
	if s.admin, err = freePort(ctx); err != nil {
		return instance{}, err
	}
	if s.kubeconfig, err = b.cluster.KubeconfigAt(c.user, p.Addr()); err != nil {
		return instance{}, err
	}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return instance{}, fmt.Errorf("creating a folder: %w", err)
	}
	if err := os.WriteFile(s.conf, []byte(c.config(s)), 0o600); err != nil {
		return instance{}, fmt.Errorf("writing a configuration: %w", err)
	}
	return s, nil
}

// freePort returns a port that is free for UDP and TCP on the loopback address, each once.
func freePort(ctx context.Context) (int, error) {
	addr, err := proctest.ReservePort(ctx)
	return int(addr.Port()), err
}
