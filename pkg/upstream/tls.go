// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"

	"github.com/nodecache/node-cache/pkg/filewatch"
	"github.com/nodecache/node-cache/pkg/remote"
)

// A tlsClient secures connections to one upstream. An upstream that cannot be verified is never asked.
//
// No query is sent as early data (0-RTT): an attacker could replay it, which would reveal the client's question.
type tlsClient struct {
	*common
	serverName string // name or address in the certificate
	caFile     string // path of the CA certificates in PEM; empty: those of the system
	alpn       string // protocol to negotiate
	count      *counters

	mu      sync.Mutex        // guards the fields below
	config  *tls.Config       // immutable; nil: not built yet
	roots   [sha256.Size]byte // hash of the CA file that config was built from
	problem string            // error and hash of a changed CA file that cannot be used; empty: none
}

func newTLSClient(c *common, t Target, count *counters, proto string) *tlsClient {
	name := t.Name
	if name == "" {
		name = t.Addr.Addr().WithZone("").String()
	}
	return &tlsClient{common: c, serverName: name, caFile: t.CAFile, alpn: proto, count: count}
}

// handshake does a TLS handshake on nc. Errors other than network errors wrap errTLS. It does not close nc.
func (t *tlsClient) handshake(ctx context.Context, nc net.Conn) (*tls.Conn, error) {
	config, err := t.current(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errTLS, err)
	}
	conn := tls.Client(nc, config)
	if err := remote.Error(conn.HandshakeContext(ctx)); err != nil {
		if isNetworkError(err) {
			return nil, fmt.Errorf("TLS handshake: %w", err)
		}
		return nil, fmt.Errorf("%w: %w", errTLS, err)
	}
	state := conn.ConnectionState()
	if t.alpn == "h2" && state.NegotiatedProtocol != "h2" {
		return nil, fmt.Errorf("%w: HTTP/2 not negotiated", errTLS)
	}
	if state.DidResume {
		t.count.resumed.Add(1)
	}
	return conn, nil
}

// isNetworkError reports whether a handshake failed because of the network, and not because of TLS.
func isNetworkError(err error) bool {
	var errno syscall.Errno
	var timed net.Error
	return errors.As(err, &errno) || errors.As(err, &timed) && timed.Timeout() ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe)
}

// current returns the TLS configuration for the next handshake. After a change of the CA file, earlier sessions are not
// resumed. If the file cannot be used, the previous configuration stays, and each version of the file is logged once.
func (t *tlsClient) current(ctx context.Context) (*tls.Config, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.caFile == "" && t.config != nil {
		return t.config, nil
	}
	roots, hash, err := readCAFile(t.caFile)
	if err != nil && t.config == nil {
		return nil, err
	}
	if err != nil {
		if problem := err.Error() + string(hash[:]); problem != t.problem {
			t.problem = problem
			t.Log.WarnContext(ctx, "CA file unusable, keeping the previous one", "file", t.caFile, "err", err)
		}
		return t.config, nil
	}
	if t.problem = ""; t.config != nil && hash == t.roots {
		return t.config, nil
	}
	t.roots = hash
	t.config = &tls.Config{
		ServerName:         t.serverName, // an address is not sent as SNI, but is verified
		RootCAs:            roots,
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{t.alpn},
		ClientSessionCache: tls.NewLRUClientSessionCache(0), // default size, which is enough: one server name needs one session
		Time:               t.Now,
	}
	return t.config, nil
}

// maxCAFile bounds a CA file in bytes, at four times the size of a system's.
const maxCAFile = 1 << 20

// readCAFile reads certificates in PEM, and returns the hash of the file. The result for an empty path is nil: package
// tls uses the certificates of the system.
func readCAFile(path string) (roots *x509.CertPool, hash [sha256.Size]byte, err error) {
	if path == "" {
		return nil, hash, nil
	}
	pem, err := filewatch.ReadFile(path, maxCAFile)
	if err != nil {
		return nil, hash, fmt.Errorf("reading the CA file: %w", err)
	}
	roots, hash = x509.NewCertPool(), sha256.Sum256(pem)
	if !roots.AppendCertsFromPEM(pem) {
		return nil, hash, fmt.Errorf("reading the CA file %s: no certificate", path)
	}
	return roots, hash, nil
}
