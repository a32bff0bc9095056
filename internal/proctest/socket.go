// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// SocketPath returns a path for an agent's admin.socket, which has to be short.
func SocketPath(t *testing.T) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "nc") //nolint:usetesting // that of testing has the name of the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	return filepath.Join(folder, "s")
}

// OverSocket requests a page over an agent's admin.socket, once that is there: an agent answers queries before. Any status but 200
// is an error.
func OverSocket(ctx context.Context, socket, method, page string) (string, error) {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			for {
				conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
				if err == nil || !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
					return conn, err
				}
				select {
				case <-ctx.Done():
					return nil, err
				case <-time.After(10 * time.Millisecond):
				}
			}
		},
	}}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://localhost"+page, http.NoBody)
	if err != nil {
		return "", err
	}
	reply, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = reply.Body.Close() }()
	body, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, page, reply.Status, body)
	}
	return string(body), err
}

// PageURL returns the address of an agent's page for browsers, with its token.
func PageURL(t *testing.T, socket string) string {
	t.Helper()
	var page struct{ URL string }
	text, err := OverSocket(t.Context(), socket, http.MethodGet, "/page")
	if err == nil {
		err = json.Unmarshal([]byte(text), &page)
	}
	if err != nil {
		t.Fatal(err)
	}
	return page.URL
}
