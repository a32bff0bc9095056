// SPDX-License-Identifier: Apache-2.0

package kubetest_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/kubetest"
)

// silence is how long nothing must arrive through a frozen proxy.
const silence = 200 * time.Millisecond

func TestProxyCountsBytes(t *testing.T) {
	t.Parallel()
	p := echoProxy(t)
	c := dial(t, p)
	for _, line := range []string{"one", "two and more"} {
		if got, err := exchangeLine(c, line); got != line || err != nil {
			t.Errorf("through the proxy: got %q, %v, want %q", got, err, line)
		}
	}
	sent := int64(len("one\ntwo and more\n"))
	want := kubetest.Traffic{ToServer: sent, ToClient: 2 * sent, Connections: 1}
	if diff := cmp.Diff(want, p.Traffic()); diff != "" {
		t.Errorf("traffic (-want +got):\n%s", diff)
	}
}

func TestProxyFreezes(t *testing.T) {
	t.Parallel()
	p := echoProxy(t)
	before := dial(t, p)
	if _, err := exchangeLine(before, "hello"); err != nil {
		t.Fatal(err)
	}
	p.Freeze()
	during := dial(t, p) // it opens nevertheless
	for name, c := range map[string]net.Conn{"a connection from before": before, "a new connection": during} {
		if _, err := fmt.Fprintln(c, "hello again"); err != nil {
			t.Fatal(err)
		}
		if got, err := readLine(c, silence); !timedOut(err) {
			t.Errorf("%s: got %q, %v, want silence", name, got, err)
		}
	}
	p.Resume()
	for name, c := range map[string]net.Conn{"a connection from before": before, "a new connection": during} {
		if got, err := readLine(c, limit); got != "hello again" || err != nil {
			t.Errorf("%s, resumed: got %q, %v, want what was held back", name, got, err)
		}
	}
}

func TestProxyCuts(t *testing.T) {
	t.Parallel()
	p := echoProxy(t)
	before := dial(t, p)
	if _, err := exchangeLine(before, "hello"); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	if got, err := exchangeLine(before, "hello again"); err == nil || timedOut(err) {
		t.Errorf("a connection from before: got %q, %v, want its end", got, err)
	}
	if c, err := net.DialTimeout("tcp4", p.Addr().String(), limit); err == nil { // it may end before the dial returns
		defer func() { _ = c.Close() }()
		if got, err := exchangeLine(c, "hello again"); err == nil || timedOut(err) {
			t.Errorf("a new connection: got %q, %v, want its end", got, err)
		}
	}
	p.Resume()
	if got, err := exchangeLine(dial(t, p), "hello"); got != "hello" || err != nil {
		t.Errorf("resumed: got %q, %v, want an answer", got, err)
	}
}

func TestFrozenProxyCloses(t *testing.T) {
	t.Parallel()
	p := echoProxy(t)
	c := dial(t, p)
	if _, err := exchangeLine(c, "hello"); err != nil {
		t.Fatal(err)
	}
	p.Freeze()
	if _, err := fmt.Fprintln(c, "held back"); err != nil {
		t.Fatal(err)
	}
	p.Close() // waits for its tasks, so the test ends only if they do
	if _, err := readLine(c, limit); err == nil || timedOut(err) {
		t.Errorf("after the proxy's end: got %v, want the connection's end", err)
	}
}

// echoProxy is a proxy in front of a server that returns every line, and the line's length in blanks to distinguish
// the directions.
func echoProxy(t *testing.T) *kubetest.Proxy {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go echo(l) // ends with the listener
	t.Cleanup(func() { _ = l.Close() })
	p, err := kubetest.NewProxy(t.Context(), netip.MustParseAddrPort(l.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func echo(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() { // ends with the connection, which the proxy ends
			defer func() { _ = c.Close() }()
			for lines := bufio.NewScanner(c); lines.Scan(); {
				line := lines.Text()
				if _, err := fmt.Fprintln(c, line+strings.Repeat(" ", len(line)+1)); err != nil {
					return
				}
			}
		}()
	}
}

func dial(t *testing.T, p *kubetest.Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp4", p.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// exchangeLine sends a line and returns the answer without blanks.
func exchangeLine(c net.Conn, line string) (string, error) {
	if _, err := fmt.Fprintln(c, line); err != nil {
		return "", err
	}
	return readLine(c, limit)
}

// readLine reads a line.
func readLine(c net.Conn, timeout time.Duration) (string, error) {
	if err := c.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}

func timedOut(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded)
}
