// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// readyTimeout bounds one question whether a server is ready.
const readyTimeout = 5 * time.Second

// Get requests a URL. It returns an error unless the status is 200.
func Get(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("answered %d %s", r.StatusCode, text)
	}
	return err
}

// Ask sends a DNS query for the root's name servers over udp or tcp. It returns an error unless there is a reply.
func Ask(ctx context.Context, network string, server netip.AddrPort) error {
	client := &dns.Client{Net: network, Timeout: readyTimeout}
	_, _, err := client.ExchangeContext(ctx, new(dns.Msg).SetQuestion(".", dns.TypeNS), server.String())
	return err
}
