// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"time"
)

// askTimeout bounds one query. Round trips between namespaces take microseconds, except on a busy machine.
const askTimeout = 3 * time.Second

// Ask sends one query from host h, from a new port, over "udp" or "tcp", and returns the name of the server that
// answers. A lost query is a timeout (os.ErrDeadlineExceeded).
func Ask(h *Host, addr netip.AddrPort, network string) (who string, err error) {
	return AskName(h, addr, network, askName)
}

// AskName is [Ask] for a given name.
func AskName(h *Host, addr netip.AddrPort, network, name string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	c, err := h.Dial(ctx, network, addr.String())
	if err != nil {
		return "", fmt.Errorf("asking %s from %s: %w", addr, h.Name, err)
	}
	defer func() { _ = c.Close() }()
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return "", err
	}
	msg, err := exchange(c, newQuery(0x4e43, name))
	if err != nil {
		return "", fmt.Errorf("asking %s from %s: %w", addr, h.Name, err)
	}
	return serverName(msg)
}

// Fetch sends an HTTP request from h and returns the body of the response.
func Fetch(ctx context.Context, h *Host, method, url string) (string, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: h.Dial}, Timeout: askTimeout}
	req, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("fetching from %s: %w", h.Name, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}
