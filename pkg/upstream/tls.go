// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/filewatch"
	"github.com/nodecache/node-cache/pkg/wire"
)

// errTLS marks certificate errors and other TLS protocol errors.
var errTLS = errors.New("TLS failed")

// A tlsClient secures connections to one upstream. An upstream that cannot be verified is never asked.
//
// No data is sent before the end of the handshake (0-RTT): a replayed query would reveal the client's question.
type tlsClient struct {
	*common
	serverName string // name in the certificate, or address
	caFile     string // of the CA certificates; empty: the system's
	alpn       string // protocol to negotiate
	count      *counters

	mu         sync.Mutex   // guards the fields below
	config     *tls.Config  // immutable; nil: not built yet
	version    fileVersion  // of the CA file that config was built from
	badVersion *fileVersion // of a CA file that could not be used since; nil: none
}

// A fileVersion identifies a version of a file.
type fileVersion struct {
	changed time.Time
	size    int64
}

func newTLSClient(c *common, t Target, count *counters, proto string) *tlsClient {
	name := t.Name
	if name == "" {
		name = t.Addr.Addr().WithZone("").String()
	}
	return &tlsClient{common: c, serverName: name, caFile: t.CAFile, alpn: proto, count: count}
}

// handshake does a TLS handshake on nc, or returns why the peer is not trusted. It does not close nc.
func (t *tlsClient) handshake(ctx context.Context, nc net.Conn) (*tls.Conn, error) {
	config, err := t.current(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errTLS, err)
	}
	conn := tls.Client(nc, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		if isNetworkError(err) {
			return nil, fmt.Errorf("TLS handshake: %w", err)
		}
		return nil, fmt.Errorf("%w: %w", errTLS, err)
	}
	if conn.ConnectionState().DidResume {
		t.count.resumed.Add(1)
	}
	return conn, nil
}

// isNetworkError distinguishes network errors from TLS errors.
func isNetworkError(err error) bool {
	var errno syscall.Errno
	var timed net.Error
	return errors.As(err, &errno) || errors.As(err, &timed) && timed.Timeout() ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe)
}

// current returns the TLS configuration for the next handshake. If the CA file has changed it is read again, and
// sessions from before cannot be resumed. If it cannot be read, the previous one stays.
func (t *tlsClient) current(ctx context.Context) (*tls.Config, error) {
	t.mu.Lock()
	config, known := t.config, t.version
	t.mu.Unlock()
	if t.caFile == "" && config != nil {
		return config, nil
	}
	seen, roots, err := t.readRoots(config != nil, known)
	if err == nil && config != nil && seen == known {
		return config, nil
	}
	if err != nil && config != nil {
		t.warnOnce(ctx, seen, err)
		return config, nil
	}
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.version, t.badVersion = seen, nil
	t.config = &tls.Config{
		ServerName:         t.serverName, // an address is not sent as SNI, but is verified
		RootCAs:            roots,
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{t.alpn},
		ClientSessionCache: tls.NewLRUClientSessionCache(0), // default size; one server name needs one session
		Time:               t.now,
	}
	return t.config, nil
}

// warnOnce logs an unusable CA file once for each version of it.
func (t *tlsClient) warnOnce(ctx context.Context, seen fileVersion, err error) {
	t.mu.Lock()
	warned := t.badVersion != nil && *t.badVersion == seen
	t.badVersion = &seen
	t.mu.Unlock()
	if !warned {
		t.log.WarnContext(ctx, "CA file unusable, keeping the previous one", "file", t.caFile, "err", err)
	}
}

// readRoots reads the CA file. If it is the known version, it returns only the version.
func (t *tlsClient) readRoots(have bool, known fileVersion) (fileVersion, *x509.CertPool, error) {
	if t.caFile == "" {
		return fileVersion{}, nil, nil // package tls uses the system's
	}
	info, err := os.Stat(t.caFile)
	if err != nil {
		return fileVersion{}, nil, fmt.Errorf("reading the CA file: %w", err)
	}
	seen := fileVersion{changed: info.ModTime(), size: info.Size()}
	if have && seen == known {
		return seen, nil, nil
	}
	roots, err := readCAFile(t.caFile)
	return seen, roots, err
}

// maxCAFile bounds a CA file in bytes, at four times the size of a system's.
const maxCAFile = 1 << 20

// readCAFile reads certificates in PEM.
func readCAFile(path string) (*x509.CertPool, error) {
	pem, err := filewatch.ReadFile(path, maxCAFile)
	if err != nil {
		return nil, fmt.Errorf("reading the CA file: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("reading the CA file %s: no certificate", path)
	}
	return roots, nil
}

const (
	padBlock      = 128              // RFC 8467 section 4.1: pad queries to a multiple of this size
	optionPadding = 12               // RFC 7830
	maxPadding    = 4 + padBlock - 1 // bytes that padding adds at most
)

// appendPadded appends the query with a padding option, so that its size reveals little about the name. A query
// without an OPT record at its end, or with padding, is appended unchanged.
func appendPadded(dst, q []byte) []byte {
	at := optionsOffset(q)
	start := len(dst)
	dst = append(dst, q...)
	if at < 0 || len(q)+maxPadding > wire.MaxMessage {
		return dst
	}
	var zeros [padBlock]byte
	n := -(len(q) + 4) & (padBlock - 1)
	dst = append(dst, 0, optionPadding, 0, byte(n))
	dst = append(dst, zeros[:n]...)
	length := dst[start+at:]
	binary.BigEndian.PutUint16(length, binary.BigEndian.Uint16(length)+uint16(4+n))
	return dst
}

// optionsOffset returns the offset of the length of the OPT record's options, or -1 if the query cannot be padded.
func optionsOffset(q []byte) int {
	at := wire.HeaderLen
	if len(q) < at {
		return -1
	}
	records := 0
	for _, section := range []int{6, 8, 10} {
		records += int(binary.BigEndian.Uint16(q[section:]))
	}
	if binary.BigEndian.Uint16(q[4:]) != 1 || records == 0 {
		return -1
	}
	if at = skipName(q, at); at < 0 {
		return -1
	}
	at += 4
	for ; records > 0; records-- {
		owner := at
		if at = skipName(q, at); at < 0 || at+10 > len(q) {
			return -1
		}
		length := at + 8
		end := at + 10 + int(binary.BigEndian.Uint16(q[length:]))
		if records == 1 && end == len(q) && q[owner] == 0 &&
			binary.BigEndian.Uint16(q[at:]) == wire.TypeOPT && !hasPadding(q[at+10:]) {
			return length
		}
		at = end
	}
	return -1
}

// skipName returns the offset after the name at the offset, or -1.
func skipName(q []byte, at int) int {
	for at < len(q) {
		switch n := int(q[at]); {
		case n == 0:
			return at + 1
		case n >= 0xc0:
			return at + 2
		default:
			at += n + 1
		}
	}
	return -1
}

// hasPadding reports whether the options contain padding, or are malformed.
func hasPadding(options []byte) bool {
	for len(options) > 0 {
		if len(options) < 4 || binary.BigEndian.Uint16(options) == optionPadding {
			return true
		}
		n := 4 + int(binary.BigEndian.Uint16(options[2:]))
		if n > len(options) {
			return true
		}
		options = options[n:]
	}
	return false
}
