// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/nodecache/node-cache/internal/proctest"
)

// The configurations: one thread, a cache that holds every name of the hit lists, one upstream, no validation,
// no query log, and where a server has a bound on misses in flight or on those of a client, one above the load's 400.

func nodeCacheConfig(s site) string { return nodeCacheWith(s, "") }

// nodeCacheOverTCP asks as the cluster's central resolver is asked.
func nodeCacheOverTCP(s site) string { return nodeCacheWith(s, "tcp://") }

func nodeCacheWith(s site, scheme string) string {
	return fmt.Sprintf(`apiVersion: node-cache.io/v1alpha1
kind: Config
listen: {addresses: [%[1]s], port: %[2]d}
forward:
- {zone: ".", to: ["%[4]s%[1]s:%[3]d"]}
admin: {address: ""}
log: {level: error}
`, loopback, s.port, s.upstream, scheme)
}

// corefile is NodeLocal DNSCache's own block for names outside the cluster, without its cluster zones.
func corefile(s site) string { return corefileWith(s, "") }

// corefileOverTCP is NodeLocal DNSCache's way to the cluster's DNS.
func corefileOverTCP(s site) string {
	return corefileWith(s, " {\n        force_tcp\n    }")
}

func corefileWith(s site, options string) string {
	return fmt.Sprintf(`.:%[2]d {
    errors
    bind %[1]s
    cache {
        success 99840 30
        denial 99840 30
    }
    loop
    forward . %[1]s:%[3]d%[5]s
    prometheus %[1]s:%[4]d
}
`, loopback, s.port, s.upstream, s.admin, options)
}

func unboundConfig(s site) string { return unboundWith(s, "") }

func unboundOverTCP(s site) string {
	return unboundWith(s, "  tcp-upstream: yes\n  outgoing-num-tcp: 100\n")
}

func unboundWith(s site, options string) string {
	return fmt.Sprintf(`server:
  interface: %[1]s@%[2]d
  do-daemonize: no
  username: ""
  chroot: ""
  directory: "%[4]s"
  pidfile: ""
  use-syslog: no
  num-threads: 1
  so-reuseport: yes
  so-rcvbuf: 4m
  msg-cache-size: 64m
  rrset-cache-size: 128m
  do-not-query-localhost: no
  module-config: "iterator"
  outgoing-range: 8192
  num-queries-per-thread: 4096
  local-zone: "test." nodefault
%[5]sforward-zone:
  name: "."
  forward-addr: %[1]s@%[3]d
`, loopback, s.port, s.upstream, s.dir, options)
}

func dnsdistConfig(s site) string { return dnsdistWith(s, "") }

func dnsdistOverTCP(s site) string { return dnsdistWith(s, ", tcpOnly=true") }

func dnsdistWith(s site, options string) string {
	return fmt.Sprintf(`setLocal('%[1]s:%[2]d')
newServer({address='%[1]s:%[3]d', healthCheckMode='up'%[4]s})
pc = newPacketCache(100000)
getPool(''):setCache(pc)
setSecurityPollSuffix('')
`, loopback, s.port, s.upstream, options)
}

func kresdConfig(s site) string {
	return fmt.Sprintf(`net.listen('%[1]s', %[2]d, { kind = 'dns' })
modules.unload('ta_update')
modules.unload('ta_signal_query')
modules.unload('priming')
modules.unload('detect_time_skew')
trust_anchors.remove('.')
cache.open(200 * MB, 'lmdb://%[4]s')
modules.load('policy')
policy.add(policy.all(policy.STUB('%[1]s@%[3]d')))
`, loopback, s.port, s.upstream, s.dir)
}

// dnsmasqArgs keeps the cache at ten times the names that exist: dnsmasq's manual warns of large ones, which cost it speed.
func dnsmasqArgs(s site) []string {
	return []string{
		"--keep-in-foreground", "--no-resolv", "--no-hosts", "--conf-file=/dev/null", "--user=root", "--group=root", "--pid-file=",
		"--port=" + strconv.Itoa(s.port), "--listen-address=" + loopback, "--bind-interfaces",
		"--server=" + loopback + "#" + strconv.Itoa(s.upstream), "--cache-size=10000", "--dns-forward-max=4096",
	}
}

func recursorArgs(s site) []string {
	return []string{
		"--config-dir=" + s.dir, "--socket-dir=" + s.dir, "--daemon=no", "--quiet=yes", "--loglevel=0",
		"--local-address=" + loopback, "--local-port=" + strconv.Itoa(s.port), "--reuseport=yes",
		"--threads=1", "--distributor-threads=0", "--pdns-distributes-queries=no", "--max-mthreads=4096",
		"--forward-zones-recurse=.=" + loopback + ":" + strconv.Itoa(s.upstream), "--dont-query=", "--dnssec=off",
	}
}

// nodeCacheInCluster answers the zone locally; there is no other server to ask.
func nodeCacheInCluster(s site, endpoints string) string {
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

// corefileInCluster is what kubeadm gives to CoreDNS, without what only observes: health, loop, loadbalance, prometheus and
// reload.
func corefileInCluster(s site) string {
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

// upstreamConfig is NSD's, whose answers have all sections.
func upstreamConfig(dir string, port int) string {
	return proctest.NSDConfig(netip.MustParseAddrPort(fmt.Sprintf("%s:%d", loopback, port)), dir,
		"server:\n  minimal-responses: no\nzone:\n  name: bench.test\n  zonefile: zone\n")
}
