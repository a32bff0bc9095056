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

// errTLS marks what is wrong with an upstream's certificate, or with the way it speaks TLS.
var errTLS = errors.New("no trust in it")

// A trust secures connections to one upstream. There is no way around it: what cannot be verified is not asked.
//
// Nothing is ever sent before the handshake is over (0-RTT): a query that is replayed tells who asked for it.
type tlsClient struct {
	*common
	serverName string // that the certificate must be for; an address where there is no name
	caFile     string // of the authorities; empty: the system's
	alpn       string // of ALPN
	count      *counters

	mu         sync.Mutex   // guards the fields below
	config     *tls.Config  // is not changed any more; nil: not made yet
	version    fileVersion  // of the file that config was made from
	badVersion *fileVersion // of the file that was found to be of no use since; nil: none
}

// A stamp tells versions of a file apart.
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

// handshake makes a TLS connection of nc, or says why the peer is not to be trusted. It does not close nc.
func (t *tlsClient) handshake(ctx context.Context, nc net.Conn) (*tls.Conn, error) {
	config, err := t.current(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errTLS, err)
	}
	conn := tls.Client(nc, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		if isNetworkError(err) {
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
func isNetworkError(err error) bool {
	var errno syscall.Errno
	var timed net.Error
	return errors.As(err, &errno) || errors.As(err, &timed) && timed.Timeout() ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe)
}

// current is what the next handshake goes by. A file of authorities that has changed is read again, and with the old
// ones the sessions go that were opened under them. One that can be read no more leaves what there was.
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
		ServerName:         t.serverName, // an address is not sent, but the certificate is held to it
		RootCAs:            roots,
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{t.alpn},
		ClientSessionCache: tls.NewLRUClientSessionCache(0), // one session, there is one name
		Time:               t.now,
	}
	return t.config, nil
}

// complain says once of each version of the file that it is of no use, however many connections are opened.
func (t *tlsClient) warnOnce(ctx context.Context, seen fileVersion, err error) {
	t.mu.Lock()
	told := t.badVersion != nil && *t.badVersion == seen
	t.badVersion = &seen
	t.mu.Unlock()
	if !told {
		t.log.WarnContext(ctx, "certificate authorities not read again", "file", t.caFile, "error", err)
	}
}

// authorities reads the file. If it is the one that is known, only the stamp comes back.
func (t *tlsClient) readRoots(have bool, known fileVersion) (fileVersion, *x509.CertPool, error) {
	if t.caFile == "" {
		return fileVersion{}, nil, nil // TLS takes the system's
	}
	info, err := os.Stat(t.caFile)
	if err != nil {
		return fileVersion{}, nil, fmt.Errorf("looking at certificate authorities: %w", err)
	}
	seen := fileVersion{changed: info.ModTime(), size: info.Size()}
	if have && seen == known {
		return seen, nil, nil
	}
	roots, err := readCAFile(t.caFile)
	return seen, roots, err
}

// maxAuthorities bounds a file of certificates, in bytes. All that a system trusts take a quarter of it.
const maxCAFile = 1 << 20

// readAuthorities reads certificates in PEM.
func readCAFile(path string) (*x509.CertPool, error) {
	pem, err := filewatch.ReadFile(path, maxCAFile)
	if err != nil {
		return nil, fmt.Errorf("reading certificate authorities: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("reading certificate authorities: no certificate in %s", path)
	}
	return roots, nil
}

const (
	padBlock      = 128              // RFC 8467 section 4.1: what the size of a query is a multiple of
	optionPadding = 12               // RFC 7830
	maxPadding    = 4 + padBlock - 1 // octets that padding adds
)

// appendPadded appends the query with a padding option, so that its size says little about the name in it. A query that
// has no OPT record at its end, or one that is padded already, is appended as it is.
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

// paddable is the offset of the length of the OPT record's options, or -1 where the query takes no padding.
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

// skipName is the offset after the name at the offset, or -1.
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

// padded tells whether there is a padding among the options, or what cannot be read as options.
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
