// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/admin/secure"
	"github.com/nodecache/node-cache/pkg/certificate"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/watch"
)

// secureAdmin is what the admin server needs for admin.tls. nil: it is not configured.
type secureAdmin struct {
	addr        netip.AddrPort
	certificate *certificate.Certificate
	reviews     *secure.Reviews
}

// newSecureAdmin reads the certificate, and the credentials for the API server. It opens no connection.
func newSecureAdmin(cfg *config.Config, userAgent string, log *slog.Logger) (s *secureAdmin, err error) {
	if !cfg.Admin.TLSAddress.IsValid() {
		return nil, nil //nolint:nilnil // as the type says
	}
	s = &secureAdmin{addr: cfg.Admin.TLSAddress}
	if cfg.Admin.Cert == "" {
		s.certificate, err = certificate.SelfSigned(nodeName(), time.Now())
	} else {
		s.certificate, err = certificate.Load(cfg.Admin.Cert, cfg.Admin.Key, log)
	}
	if err != nil {
		return nil, &hint.Error{Err: fmt.Errorf("admin.tls: %w", err), Hint: "set files that this user can read, or none for a self-signed certificate"}
	}
	client, err := watch.NewContextClient(cfg.Cluster.Kubeconfig, cfg.Cluster.Context, userAgent)
	if err != nil {
		return nil, &hint.Error{Err: fmt.Errorf("admin.tls.address: %w", err), Hint: "it asks the API server about tokens: set cluster.kubeconfig, or leave it out"}
	}
	s.reviews = secure.New(client, log)
	return s, nil
}

// config returns the admin server's part.
func (s *secureAdmin) config() *admin.Secure {
	if s == nil {
		return nil
	}
	return &admin.Secure{Addr: s.addr, TLS: s.certificate.TLS(), Authorize: s.reviews.Authorize}
}

// run follows the files of the certificate until ctx ends.
func (s *secureAdmin) run(ctx context.Context) {
	if s != nil {
		s.certificate.Run(ctx)
	}
}

// stats returns nil if there is nothing to count.
func (s *secureAdmin) stats() *secure.Stats {
	if s == nil {
		return nil
	}
	return new(s.reviews.Stats())
}
