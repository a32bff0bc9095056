// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/transport/websocket"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/hint"
)

// maxReply bounds the bytes read of one command, all its streams together. The pages of a node with 250 pods take 60 KB.
const maxReply = 4 << 20

// A reply is what a command wrote, and its exit code.
type reply struct {
	stdout, stderr bytes.Buffer
	code           int
}

// exec runs the agent's program in a pod.
func (c *cluster) exec(ctx context.Context, pod string, args ...string) (*reply, error) {
	conn, err := c.start(ctx, pod, false, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	return readReply(conn)
}

// start starts the agent's program in a pod. The caller reads the WebSocket: remotecommand of client-go reads the stream of errors,
// which the node sends, without a bound.
func (c *cluster) start(ctx context.Context, pod string, stdin bool, args ...string) (webSocket, error) {
	options := &corev1.PodExecOptions{
		Container: agentName, Command: append([]string{"/node-cache"}, args...), Stdin: stdin, Stdout: true, Stderr: true,
	}
	where := c.client.CoreV1().RESTClient().Get().Namespace(c.namespace).Resource("pods").Name(pod).SubResource("exec").
		VersionedParams(options, scheme.ParameterCodec)
	tripper, holder, err := websocket.RoundTripperFor(c.config)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where.URL().String(), nil)
	if err != nil {
		return nil, err
	}
	conn, err := websocket.Negotiate(tripper, holder, request, remotecommand.StreamProtocolV5Name, remotecommand.StreamProtocolV4Name)
	if upgrade := (*httpstream.UpgradeFailureError)(nil); errors.As(err, &upgrade) {
		return nil, upgrade.Cause // the cause has the status with which the API server refused
	}
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// A webSocket carries the streams of a program. The first byte of a message names the stream.
type webSocket interface {
	messageReader
	WriteMessage(kind int, message []byte) error
	Close() error
}

// A messageReader is a WebSocket.
type messageReader interface {
	SetReadLimit(bytes int64) // limits the size of one message
	ReadMessage() (kind int, message []byte, err error)
}

// readReply reads the command's streams until the API server has sent the command's status and closed the connection.
func readReply(conn messageReader) (*reply, error) {
	var r reply
	var status bytes.Buffer
	conn.SetReadLimit(maxReply)
	for left := maxReply; left > 0; {
		_, message, err := conn.ReadMessage()
		if err != nil && status.Len() > 0 {
			return &r, r.setStatus(status.Bytes())
		}
		if err != nil {
			return nil, fmt.Errorf("the connection ended: %w", err)
		}
		left -= len(message) + 1
		if len(message) == 0 {
			continue
		}
		switch message[0] {
		case remotecommand.StreamStdOut:
			r.stdout.Write(message[1:])
		case remotecommand.StreamStdErr:
			r.stderr.Write(message[1:])
		case remotecommand.StreamErr:
			status.Write(message[1:])
		}
	}
	return nil, fmt.Errorf("it sent more than %d MiB", maxReply>>20)
}

// setStatus reads the command's status. It sets the exit code, or returns why there is none.
func (r *reply) setStatus(text []byte) error {
	var s metav1.Status
	if err := cli.ReadJSON(text, &s); err != nil {
		return fmt.Errorf("reading the status: %w", err)
	}
	if s.Status == metav1.StatusSuccess {
		return nil
	}
	if s.Reason == remotecommand.NonZeroExitCodeReason && s.Details != nil {
		for _, cause := range s.Details.Causes {
			code, err := strconv.ParseUint(cause.Message, 10, 8)
			if cause.Type == remotecommand.ExitCodeCauseType && err == nil {
				r.code = int(code)
				return nil
			}
		}
	}
	return errors.New(cmp.Or(s.Message, "the status has no message"))
}

// err returns the error that the program printed, with its hint; nil: exit code 0.
func (r *reply) err() error {
	if r.code == cli.ExitOK {
		return nil
	}
	why, rest, _ := strings.Cut(r.stderr.String(), "\n")
	_, rest, _ = strings.Cut("\n"+rest, "\nhint: ")
	advice, _, _ := strings.Cut(rest, "\n")
	return &hint.Error{Err: errors.New(cmp.Or(strings.TrimPrefix(why, "node-cache: "), fmt.Sprintf("exit code %d", r.code))), Hint: cell(advice)}
}

// output runs the agent's program in a pod and returns its standard output. An exit code above 0 is an error.
func (c *cluster) output(ctx context.Context, pod string, args ...string) ([]byte, error) {
	r, err := c.exec(ctx, pod, args...)
	if err == nil {
		err = r.err()
	}
	if err != nil {
		return nil, err
	}
	return r.stdout.Bytes(), nil
}
