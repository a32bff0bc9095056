// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// NSDConfig is the configuration of an NSD without rate limits, that writes into one folder only. Zones are sections of their own.
func NSDConfig(addr netip.AddrPort, dir, zones string) string {
	return fmt.Sprintf(`server:
  ip-address: %s@%d
  server-count: 1
  tcp-count: 1000
  username: ""
  chroot: ""
  database: ""
  zonelistfile: %[3]s/zone.list
  pidfile: %[3]s/nsd.pid
  xfrdfile: %[3]s/xfrd.state
  xfrdir: %[3]s
  zonesdir: %[3]s
  xfrd-reload-timeout: 0
  rrl-ratelimit: 0
  minimal-responses: yes
remote-control:
  control-enable: no
%[4]s`, addr.Addr(), addr.Port(), dir, zones)
}

// StartNSD runs NSD for a test with zones by their names, and waits until it serves each.
func StartNSD(t *testing.T, addr netip.AddrPort, zones map[string]string) *Process {
	t.Helper()
	dir, sections := t.TempDir(), ""
	for name, text := range zones {
		WriteFile(t, filepath.Join(dir, name), text)
		sections += fmt.Sprintf("zone:\n  name: %[1]s\n  zonefile: %[1]s\n", name)
	}
	p := LaunchNSD(t, addr, dir, sections)
	for name := range zones {
		Eventually(t, time.Minute, "nsd serves "+name, func() bool {
			if p.Ended() {
				t.Fatalf("nsd ended: %v", p.Err())
			}
			r, _, err := (&dns.Client{Timeout: 500 * time.Millisecond}).Exchange(new(dns.Msg).SetQuestion(name+".", dns.TypeSOA), addr.String())
			return err == nil && r.Rcode == dns.RcodeSuccess && len(r.Answer) == 1
		})
	}
	return p
}

// LaunchNSD runs NSD for a test, with zones as sections of its configuration, and does not wait for it.
func LaunchNSD(t *testing.T, addr netip.AddrPort, dir, zones string) *Process {
	t.Helper()
	conf := filepath.Join(dir, "nsd.conf")
	if err := os.WriteFile(conf, []byte(NSDConfig(addr, dir, zones)), 0o644); err != nil {
		t.Fatal(err)
	}
	return Start(t, "nsd", exec.Command(FindProgram(t, "nsd", "nsd"), "-d", "-c", conf)) //nolint:noctx // Start ends it, after the test's context
}
