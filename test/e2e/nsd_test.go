// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
)

// nameServer is a running NSD.
type nameServer struct {
	*proctest.Process
	addr string // IP:port, for UDP and TCP
}

// startNSD serves the main and the outside zone on a free port of 127.0.0.1.
func startNSD(t *testing.T) *nameServer {
	t.Helper()
	return startNSDWith(t, "127.0.0.1", freePort(t), mainZone())
}

// startTagged serves a zone whose names answer with the given address, so that tests can tell servers apart.
func startTagged(t *testing.T, address string) *nameServer {
	t.Helper()
	return startNSDWith(t, "127.0.0.1", freePort(t), taggedZone(address))
}

// startNSDWith serves the given text as e2e.test at the address, and the other zones beside it.
func startNSDWith(t *testing.T, address string, port int, zone string) *nameServer {
	t.Helper()
	nsd := proctest.FindProgram(t, "nsd", "nsd")
	dir := t.TempDir()
	var conf strings.Builder
	fmt.Fprintf(&conf, `server:
  ip-address: %s@%d
  server-count: 1
  username: ""
  chroot: ""
  database: ""
  zonelistfile: %[3]s/zone.list
  pidfile: %[3]s/nsd.pid
  xfrdfile: %[3]s/xfrd.state
  xfrdir: %[3]s
  zonesdir: %[3]s
  hide-version: yes
  rrl-ratelimit: 0
remote-control:
  control-enable: no
`, address, port, dir)
	for name, text := range map[string]string{"e2e.test": zone, "outside.test": outsideZone()} {
		writeFile(t, filepath.Join(dir, name), text)
		fmt.Fprintf(&conf, "zone:\n  name: %s\n  zonefile: %s\n", name, name)
	}
	file := writeFile(t, filepath.Join(dir, "nsd.conf"), conf.String())
	s := &nameServer{addr: fmt.Sprintf("%s:%d", address, port)}
	s.Process = proctest.Start(t, "nsd", exec.Command(nsd, "-d", "-c", file))
	s.waitReady(t)
	return s
}

// waitReady waits until the server answers.
func (s *nameServer) waitReady(t *testing.T) {
	t.Helper()
	client := dns.Client{Timeout: 500 * time.Millisecond}
	proctest.Eventually(t, 10*time.Second, s.Name+" answers", func() bool {
		if s.Ended() {
			t.Fatalf("%s ended: %v", s.Name, s.Err())
		}
		q := new(dns.Msg).SetQuestion("e2e.test.", dns.TypeSOA)
		r, _, err := client.Exchange(q, s.addr)
		return err == nil && r.Rcode == dns.RcodeSuccess && len(r.Answer) == 1
	})
}
