// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
)

const (
	// PodsSocket is where a kubelet serves its Pods API, unless it has another --root-dir.
	PodsSocket = "/var/lib/kubelet/pods-api/pods-api.sock"

	// maxPodMessages bounds the messages of one call: every pod of the node once, then about 200 events a second.
	maxPodMessages = 1 << 14

	// maxCallHeader bounds the header and the trailer of a call, in bytes.
	maxCallHeader = 16 << 10
)

// Types of the events of WatchPods. Others are ignored.
const (
	podAdded    = 1
	podModified = 2
	podDeleted  = 3 // the pod has a namespace and a name only
	podsListed  = 4 // every pod of the node was sent; the event has no pod
)

var (
	errCallEnded    = errors.New("the kubelet ended the call")
	errPodMessage   = errors.New("the kubelet sent a message that is no event, is compressed, or is larger than 8 MiB")
	errManyMessages = errors.New("the kubelet sent too many messages in one call")
)

// A dialer opens a connection.
type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// A podStream is a call of WatchPods in the kubelet's Pods API (KEP-4188). gRPC is a request of HTTP/2 with five bytes
// before each message, and the result in a trailer.
type podStream struct {
	resp     *http.Response
	messages int
	message  bytes.Buffer
}

// frameHead is the length of the prefix of a gRPC message in bytes: one byte that is 1 if the message is compressed, and its length.
const frameHead = 5

// openPodStream begins the call on a connection of its own. Both end with ctx.
func openPodStream(ctx context.Context, dial dialer) (*podStream, error) {
	request := bytes.NewReader(make([]byte, frameHead)) // an empty message
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://kubelet/v1alpha1.Pods/WatchPods", request)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("TE", "trailers")
	t := &http.Transport{
		Protocols: new(http.Protocols), DisableCompression: true, MaxResponseHeaderBytes: maxCallHeader,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			conn, err := dial(ctx, "unix", PodsSocket)
			if err == nil {
				context.AfterFunc(ctx, func() { _ = conn.Close() }) // the transport's own close waits for a kubelet that hangs
			}
			return conn, err
		},
	}
	t.Protocols.SetUnencryptedHTTP2(true)
	resp, err := t.RoundTrip(req) //nolint:bodyclose // the caller closes it
	if err != nil {
		return nil, err
	}
	return &podStream{resp: resp}, nil
}

// next returns the next event and its pod.
func (s *podStream) next() (event uint64, pod *corev1.Pod, err error) {
	if s.messages++; s.messages > maxPodMessages {
		return 0, nil, errManyMessages
	}
	var head [frameHead]byte
	_, err = io.ReadFull(s.resp.Body, head[:])
	if errors.Is(err, io.EOF) {
		return 0, nil, s.result()
	}
	size := binary.BigEndian.Uint32(head[1:])
	switch {
	case err != nil:
		return 0, nil, err
	case head[0] != 0, size > maxEvent:
		return 0, nil, errPodMessage
	}
	s.message.Reset()
	if _, err := io.CopyN(&s.message, s.resp.Body, int64(size)); err != nil {
		return 0, nil, fmt.Errorf("reading a message of the kubelet: %w", err)
	}
	event, text, err := parsePodEvent(s.message.Bytes())
	pod = new(corev1.Pod)
	if err == nil {
		err = pod.Unmarshal(text)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", errPodMessage, err)
	}
	return event, pod, nil
}

// result returns why the kubelet ended the call. The header has the result of a call without a message.
func (s *podStream) result() error {
	for _, fields := range []http.Header{s.resp.Trailer, s.resp.Header} {
		if code := fields.Get("Grpc-Status"); code != "" {
			return fmt.Errorf("%w with gRPC status %q: %q", errCallEnded, code, fields.Get("Grpc-Message"))
		}
	}
	return fmt.Errorf("%w with HTTP status %d", errCallEnded, s.resp.StatusCode)
}

// parsePodEvent parses a WatchPodsEvent. It needs no code generated for the API, and copies nothing.
func parsePodEvent(message []byte) (event uint64, pod []byte, err error) {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return 0, nil, protowire.ParseError(n)
		}
		message = message[n:]
		switch {
		case field == 1 && kind == protowire.VarintType:
			event, n = protowire.ConsumeVarint(message)
		case field == 2 && kind == protowire.BytesType:
			pod, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(field, kind, message)
		}
		if n < 0 {
			return 0, nil, protowire.ParseError(n)
		}
		message = message[n:]
	}
	return event, pod, nil
}
