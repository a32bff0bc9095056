// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// startCluster runs node-cache with a zone made of the manifests in a folder, which 127.0.0.1 may transfer.
func startCluster(t *testing.T, folder string) *agent {
	t.Helper()
	return startAgent(t, settings{to: []string{"127.0.0.1:1"}, more: clusterSection(folder, "127.0.0.1")})
}

func clusterSection(folder string, transferTo ...string) string {
	return fmt.Sprintf("cluster: {resolver: local, endpoints: all, manifests: %q, transferTo: [%s]}", folder, strings.Join(transferTo, ", "))
}

// copyExamples copies the sample cluster to a folder of the test's own.
func copyExamples(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	assert.NoError(t, os.CopyFS(dir, os.DirFS("../../examples/cluster")))
	return dir
}

// bigFolder is a folder with so many services that their zone does not fit into any socket's buffers.
func bigFolder(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("apiVersion: v1\nkind: Namespace\nmetadata: {name: big}\n")
	for i := range 4000 {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Service\nmetadata: {name: service-with-a-long-name-%d, namespace: big}\nspec:\n  clusterIP: 10.96.%d.%d\n  ports:\n", i, i>>8, i&255)
		for port := range 8 {
			fmt.Fprintf(&text, "  - {name: port-%d, port: %d}\n", port, 8000+port)
		}
	}
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "big.yaml"), text.String())
	return dir
}

// transfer transfers the cluster zone from a server. The SOA records at both ends are left out but for the serial.
func transfer(addr string) (serial uint32, records []dns.RR, err error) {
	return transferZone(addr, "cluster.local.")
}

func transferZone(addr, zone string) (serial uint32, records []dns.RR, err error) {
	t := dns.Transfer{DialTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second}
	return transferWith(&t, new(dns.Msg).SetAxfr(zone), addr)
}

func transferWith(t *dns.Transfer, q *dns.Msg, addr string) (serial uint32, records []dns.RR, err error) {
	envelopes, err := t.In(q, addr)
	if err != nil {
		return 0, nil, err
	}
	for e := range envelopes {
		err = errors.Join(err, e.Error)
		records = append(records, e.RR...)
	}
	if err != nil {
		return 0, nil, err
	}
	soa, ok := records[0].(*dns.SOA)
	if last := records[len(records)-1]; !ok || len(records) < 2 || last.String() != soa.String() {
		return 0, nil, fmt.Errorf("from %s to %s", records[0], last)
	}
	return soa.Serial, records[1 : len(records)-1], nil
}

// noTransferSlot reports whether a pull met others that had all the places. One that has left may hold its place for some moments.
func noTransferSlot(err error) bool {
	return err != nil && strings.Contains(err.Error(), fmt.Sprintf("bad xfr rcode: %d", dns.RcodeServerFailure))
}

// lines are the records as sorted text.
func lines(records []dns.RR) []string {
	list := make([]string, 0, len(records))
	for _, rr := range records {
		list = append(list, strings.ToLower(rr.String()))
	}
	slices.Sort(list)
	return list
}

// dialTransfer asks for the zone over a connection with a small buffer, and reads nothing of it.
func dialTransfer(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	dialer := net.Dialer{Timeout: 5 * time.Second, Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) }), err)
	}}
	conn, err := dialer.DialContext(t.Context(), "tcp", addr)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	assert.NoError(t, (&dns.Conn{Conn: conn}).WriteMsg(new(dns.Msg).SetAxfr("cluster.local.")))
	return conn.(*net.TCPConn)
}

// TestTransferClients serves a zone of some megabytes to clients that leave, that do not read, and that come
// two at a time.
func TestTransferClients(t *testing.T) {
	t.Parallel()
	a := startCluster(t, bigFolder(t))
	_, records, err := transfer(a.addr)
	assert.NoError(t, err)
	if len(records) < 4000*17 {
		t.Fatalf("%d records", len(records))
	}
	a.awaitLog(t, "zone transfer complete") // all four places are free
	silent := dialTransfer(t, a.addr)
	for i := range 3 { // they leave at once, and with a reset after a part
		gone := dialTransfer(t, a.addr)
		if _, err := io.CopyN(io.Discard, gone, int64(i)*50_000); err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			_ = gone.SetLinger(0)
		}
		_ = gone.Close()
	}
	var pulling sync.WaitGroup
	for range 2 {
		pulling.Go(func() {
			_, again, err := transfer(a.addr)
			for until := time.Now().Add(10 * time.Second); noTransferSlot(err) && time.Now().Before(until); {
				time.Sleep(20 * time.Millisecond)
				_, again, err = transfer(a.addr)
			}
			if err != nil || len(again) != len(records) {
				t.Errorf("beside clients that do not read: %d records, want %d: %v", len(again), len(records), err)
			}
		})
	}
	pulling.Wait()
	a.awaitPage(t, "/metrics", "the client that does not read is given up", func(page string) bool {
		return regexp.MustCompile(`(?m)^nodecache_tcp_sessions_closed_total\{reason="write_timeout"\} [1-9]`).MatchString(page)
	})
	assert.NoError(t, silent.SetReadDeadline(time.Now().Add(5*time.Second)))
	if n, err := io.Copy(io.Discard, silent); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("its connection is still open after %d bytes", n)
	}
	proctest.Eventually(t, time.Minute, "four may transfer again", func() bool {
		var four sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			four.Go(func() { _, _, errs[i] = transfer(a.addr) })
		}
		four.Wait()
		return errors.Join(errs...) == nil
	})
}
