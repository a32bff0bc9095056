// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

const (
	secondaryKey    = "secondary.example."
	secondarySecret = "c2Vjb25kYXJpZXMgb2Ygbm9kZS1jYWNoZQ=="
)

// followedZones are the domain of the cluster and that of its set.
func followedZones() []string { return []string{"cluster.local.", "clusterset.local."} }

// startNSDSecondary runs NSD, which gets NOTIFY and zone transfers signed. It does not poll.
func startNSDSecondary(t *testing.T, addr netip.AddrPort, primary string) *nameServer {
	t.Helper()
	conf := fmt.Sprintf("key:\n  name: %s\n  algorithm: hmac-sha256\n  secret: %s\n", secondaryKey, secondarySecret)
	for _, zone := range followedZones() {
		conf += fmt.Sprintf(`zone:
  name: %[3]s
  request-xfr: %[2]s %[1]s
  allow-notify: 127.0.0.1 %[1]s
  provide-xfr: 127.0.0.1 NOKEY
`, secondaryKey, strings.Replace(primary, ":", "@", 1), zone)
	}
	return &nameServer{proctest.LaunchNSD(t, addr, t.TempDir(), conf), addr.String()}
}

// startBINDSecondary is startNSDSecondary for BIND.
func startBINDSecondary(t *testing.T, addr netip.AddrPort, primary string) *nameServer {
	t.Helper()
	dir := t.TempDir()
	host, port, _ := strings.Cut(primary, ":")
	conf := fmt.Sprintf(`options {
  directory %[1]q; pid-file none; session-keyfile none; listen-on port %[2]d { %[3]s; }; listen-on-v6 { none; };
  recursion no; notify no; allow-transfer { 127.0.0.1; };
};
controls { };
key %[4]q { algorithm hmac-sha256; secret %[5]q; };
`, dir, addr.Port(), addr.Addr(), secondaryKey, secondarySecret)
	for _, zone := range followedZones() {
		conf += fmt.Sprintf("zone %[1]q { type secondary; file %[1]q; primaries { %[2]s port %[3]s key %[4]q; }; allow-notify { key %[4]q; }; };\n",
			zone, host, port, secondaryKey)
	}
	named := exec.Command(proctest.FindProgram(t, "named", "bind9"), "-g", "-n", "1", "-c", writeFile(t, filepath.Join(dir, "named.conf"), conf))
	return &nameServer{proctest.Start(t, "named", named), addr.String()}
}

// signedTransfer is transfer of a zone with a key.
func signedTransfer(addr, zone, secret string) (serial uint32, records []dns.RR, err error) {
	t := dns.Transfer{DialTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, TsigSecret: map[string]string{secondaryKey: secret}}
	return transferWith(&t, new(dns.Msg).SetAxfr(zone).SetTsig(secondaryKey, dns.HmacSHA256, 300, time.Now().Unix()), addr)
}

// rounds of changesPerRound changes are made while the secondary servers follow.
const (
	changeRounds    = 25
	changesPerRound = 40
)

// changedServices are 200 services of a shop after a round: in each round 40 of them change. The service "round" has the
// number of the round in its address. Those that have an address are imports too.
func changedServices(round int) string {
	var text strings.Builder
	const imported = "---\napiVersion: multicluster.x-k8s.io/v1beta1\nkind: ServiceImport\nmetadata: {name: %s, namespace: shop}\n" +
		"spec: {type: ClusterSetIP, ips: [10.96.200.%d], ports: [{port: %d}]}\n"
	fmt.Fprintf(&text, "apiVersion: v1\nkind: Service\nmetadata: {name: round, namespace: shop}\nspec: {clusterIP: 10.96.200.%d}\n", round+1)
	fmt.Fprintf(&text, imported, "round", round+1, 80)
	const services = 5 * changesPerRound
	for i := range services {
		last := max(0, round-(round-i%5+5)%5) // the round of its last change
		switch (last + i) % 3 {
		case 0: // absent
		case 1:
			fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Service\nmetadata: {name: s%d, namespace: shop}\nspec: {clusterIP: 10.96.100.%d, ports: [{name: http, port: %d}]}\n", i, i, 1000+last)
			fmt.Fprintf(&text, imported, fmt.Sprint("s", i), i, 1000+last)
		case 2:
			fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Service\nmetadata: {name: s%d, namespace: shop}\nspec: {type: ExternalName, externalName: h%d.example}\n", i, last)
		}
	}
	return text.String()
}

// TestSecondariesFollow makes 1,000 changes of a cluster, and of the names of its set. NSD and BIND follow them by NOTIFY and
// IXFR with TSIG: each gets either whole zone once, and has the zone's records at the end.
func TestSecondariesFollow(t *testing.T) {
	t.Parallel()
	folder := copyExamples(t)
	manifest := filepath.Join(folder, "changes.yaml")
	writeFile(t, manifest, changedServices(0))
	keys := writeFile(t, filepath.Join(t.TempDir(), "keys.conf"), fmt.Sprintf("key %q {\n\talgorithm hmac-sha256;\n\tsecret %q;\n};\n", secondaryKey, secondarySecret))
	nsdAddr, bindAddr := proctest.FreeAddr(t), proctest.FreeAddr(t)
	a := startAgent(t, settings{to: []string{"127.0.0.1:1"}, more: fmt.Sprintf(
		"cluster: {resolver: local, endpoints: all, clusterSet: clusterset.local, manifests: %q, transferTo: [\"%s\", \"%s\"], transferKeys: %q}",
		folder, nsdAddr, bindAddr, keys)})
	servers := map[string]*nameServer{"NSD": startNSDSecondary(t, nsdAddr, a.addr), "BIND": startBINDSecondary(t, bindAddr, a.addr)}
	for round := range changeRounds + 1 {
		writeFile(t, manifest, changedServices(round))
		for name, s := range servers {
			proctest.Eventually(t, time.Minute, fmt.Sprintf("%s has the changes of round %d", name, round), func() bool {
				if s.Ended() {
					t.Fatalf("%s ended: %v", name, s.Err())
				}
				return !slices.ContainsFunc(followedZones(), func(zone string) bool {
					m, _, err := new(dns.Client).Exchange(new(dns.Msg).SetQuestion("round.shop.svc."+zone, dns.TypeA), s.addr)
					return err != nil || len(m.Answer) != 1 || !strings.HasSuffix(m.Answer[0].String(), fmt.Sprint("10.96.200.", round+1))
				})
			})
		}
	}
	for _, zone := range followedZones() {
		serial, records, err := signedTransfer(a.addr, zone, secondarySecret)
		assert.NoError(t, err)
		for name, s := range servers {
			theirs, copied, err := transferZone(s.addr, zone)
			assert.NoError(t, err)
			assert.Equal(t, name+"'s serial of "+zone, serial, theirs)
			if diff := cmp.Diff(lines(records), lines(copied)); diff != "" {
				t.Errorf("%s (-node-cache +%s):\n%s", zone, name, diff)
			}
		}
	}
	a.awaitPage(t, "/metrics", "three times two whole zones, one of them to this test", func(page string) bool {
		return strings.Contains(page, `nodecache_zone_transfers_total{kind="full"} 6`)
	})
	t.Log(strings.Join(metricLines(t, a, "nodecache_zone_transfers_total", "nodecache_notify_total"), "\n"))
	if _, _, err := signedTransfer(a.addr, "cluster.local.", "d3Jvbmc="); err == nil {
		t.Error("a transfer with another secret succeeds")
	}
	if _, _, err := transfer(a.addr); err == nil || !strings.Contains(err.Error(), fmt.Sprint(dns.RcodeRefused)) {
		t.Errorf("a transfer without a key: %v, want REFUSED", err)
	}
	a.awaitLog(t, "BADSIG", "not signed")
}

// TestTransferReload allows transfers in a running agent, then changes the key, then the TTL: the zone with other records has
// another serial number, and no difference leads to it.
func TestTransferReload(t *testing.T) {
	t.Parallel()
	folder, keys := copyExamples(t), filepath.Join(t.TempDir(), "keys.conf")
	writeKey := func(secret string) {
		writeFile(t, keys, fmt.Sprintf("key %q { algorithm hmac-sha256; secret %q; };\n", secondaryKey, secret))
	}
	writeKey("b2xk")
	s := settings{to: []string{"127.0.0.1:1"}, more: clusterSection(folder)}
	a := startAgent(t, s)
	if _, _, err := signedTransfer(a.addr, "cluster.local.", "b2xk"); err == nil {
		t.Fatal("a transfer succeeds without cluster.transferTo")
	}
	use := func(what, ttl, secret string) (serial uint32) {
		t.Helper()
		s := a.settings
		s.more = fmt.Sprintf("cluster: {resolver: local, endpoints: all, manifests: %q, transferTo: [127.0.0.1/32], transferKeys: %q, ttl: %s}", folder, keys, ttl)
		writeFile(t, a.config, s.yaml())
		proctest.Eventually(t, time.Minute, what, func() bool {
			next, records, err := signedTransfer(a.addr, "cluster.local.", secret)
			serial = next
			return err == nil && fmt.Sprintf("%ds", records[0].Header().Ttl) == ttl
		})
		return serial
	}
	first := use("transfers are allowed", "5s", "b2xk")
	writeKey(secondarySecret)
	if same := use("the new key is read", "5s", secondarySecret); same != first {
		t.Errorf("serial %d, then %d with the same records", first, same)
	}
	second := use("the TTL has changed", "7s", secondarySecret)
	if int32(second-first) <= 0 {
		t.Errorf("serial %d, then %d with another TTL", first, second)
	}
}

// metricLines returns the samples of some metrics.
func metricLines(t *testing.T, a *agent, names ...string) (list []string) {
	t.Helper()
	page, err := a.Page("/metrics")
	assert.NoError(t, err)
	for line := range strings.Lines(page) {
		for _, name := range names {
			if strings.HasPrefix(line, name) {
				list = append(list, strings.TrimSpace(line))
			}
		}
	}
	return list
}
