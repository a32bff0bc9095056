// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/follow"
)

// errTLS marks what is wrong with an upstream's certificate, or with the way it speaks TLS.
var errTLS = errors.New("no trust in it")

// A trust secures connections to one upstream. There is no way around it: what cannot be verified is not asked.
//
// Nothing is ever sent before the handshake is over (0-RTT): a query that is replayed tells who asked for it.
type trust struct {
	*common
	name  string // that the certificate must be for; an address where there is no name
	file  string // of the authorities; empty: the system's
	proto string // of ALPN
	count *counters

	mu     sync.Mutex  // guards the fields below
	config *tls.Config // is not changed any more; nil: not made yet
	stamp  stamp       // of the file that config was made from
	flawed *stamp      // of the file that was found to be of no use since; nil: none
}

// A stamp tells versions of a file apart.
type stamp struct {
	changed time.Time
	size    int64
}

func newTrust(c *common, t Target, count *counters, proto string) *trust {
	name := t.Name
	if name == "" {
		name = t.Addr.Addr().WithZone("").String()
	}
	return &trust{common: c, name: name, file: t.CAFile, proto: proto, count: count}
}

// handshake makes a TLS connection of nc, or says why the peer is not to be trusted. It does not close nc.
func (t *trust) handshake(ctx context.Context, nc net.Conn) (*tls.Conn, error) {
	config, err := t.current(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errTLS, err)
	}
	conn := tls.Client(nc, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		if networkFault(err) {
			return nil, fmt.Errorf("shaking hands: %w", err)
		}
		return nil, fmt.Errorf("%w: %w", errTLS, err)
	}
	if conn.ConnectionState().DidResume {
		t.count.resumed.Add(1)
	}
	return conn, nil
}

// networkFault tells errors of the network from those of TLS, which is about all others.
func networkFault(err error) bool {
	var errno syscall.Errno
	var timed net.Error
	return errors.As(err, &errno) || errors.As(err, &timed) && timed.Timeout() ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe)
}

// current is what the next handshake goes by. A file of authorities that has changed is read again, and with the old
// ones the sessions go that were opened under them. One that can be read no more leaves what there was.
func (t *trust) current(ctx context.Context) (*tls.Config, error) {
	t.mu.Lock()
	config, known := t.config, t.stamp
	t.mu.Unlock()
	if t.file == "" && config != nil {
		return config, nil
	}
	seen, roots, err := t.authorities(config != nil, known)
	if err == nil && config != nil && seen == known {
		return config, nil
	}
	if err != nil && config != nil {
		t.complain(ctx, seen, err)
		return config, nil
	}
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stamp, t.flawed = seen, nil
	t.config = &tls.Config{
		ServerName:         t.name, // an address is not sent, but the certificate is held to it
		RootCAs:            roots,
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{t.proto},
		ClientSessionCache: tls.NewLRUClientSessionCache(0), // one session, there is one name
		Time:               t.now,
	}
	return t.config, nil
}

// complain says once of each version of the file that it is of no use, however many connections are opened.
func (t *trust) complain(ctx context.Context, seen stamp, err error) {
	t.mu.Lock()
	told := t.flawed != nil && *t.flawed == seen
	t.flawed = &seen
	t.mu.Unlock()
	if !told {
		t.log.WarnContext(ctx, "certificate authorities not read again", "file", t.file, "error", err)
	}
}

// authorities reads the file. If it is the one that is known, only the stamp comes back.
func (t *trust) authorities(have bool, known stamp) (stamp, *x509.CertPool, error) {
	if t.file == "" {
		return stamp{}, nil, nil // TLS takes the system's
	}
	info, err := os.Stat(t.file)
	if err != nil {
		return stamp{}, nil, fmt.Errorf("looking at certificate authorities: %w", err)
	}
	seen := stamp{changed: info.ModTime(), size: info.Size()}
	if have && seen == known {
		return seen, nil, nil
	}
	roots, err := readAuthorities(t.file)
	return seen, roots, err
}

// maxAuthorities bounds a file of certificates, in bytes. All that a system trusts take a quarter of it.
const maxAuthorities = 1 << 20

// readAuthorities reads certificates in PEM.
func readAuthorities(path string) (*x509.CertPool, error) {
	pem, err := follow.ReadFile(path, maxAuthorities)
	if err != nil {
		return nil, fmt.Errorf("reading certificate authorities: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("reading certificate authorities: no certificate in %s", path)
	}
	return roots, nil
}
