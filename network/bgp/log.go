package bgp

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// logHandler gets what the library logs. The library reports some events only there: why a connection that this
// host has opened came to nothing.
type logHandler struct {
	speaker *Speaker
	peer    netip.Addr
}

// Enabled implements slog.Handler. The events are at the level of debugging.
func (h *logHandler) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (h *logHandler) Handle(_ context.Context, r slog.Record) error {
	switch r.Message {
	case "failed to connect":
		h.speaker.onFailure(h.peer, cause(attr(r, "Error")))
	case "outgoing connection IO error":
		if text := attr(r, "reason"); strings.HasPrefix(text, "notification") {
			h.speaker.onFailure(h.peer, text)
		}
	case "sent notification":
		code, subcode := uint8(number(r, "Code")), uint8(number(r, "Subcode"))
		if code == bgp.BGP_ERROR_OPEN_MESSAGE_ERROR && subcode == bgp.BGP_ERROR_SUB_BAD_PEER_AS {
			h.speaker.onFailure(h.peer, wrongAS)
		}
	default:
		if r.Level >= slog.LevelError && !strings.HasPrefix(r.Message, "failed to stop") {
			h.speaker.cfg.Log("BGP: %s: %s", r.Message, attr(r, "Error"))
		}
	}
	return nil
}

// cause returns a dialer's error without its addresses.
func cause(text string) string {
	if _, after, ok := strings.Cut(text, "->"); ok {
		if _, after, ok := strings.Cut(after, ": "); ok {
			return after
		}
	}
	return text
}

// attr returns an attribute as text.
func attr(r slog.Record, key string) (text string) {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == key {
			text = a.Value.String()
		}
		return true
	})
	return text
}

// number returns an attribute that is a number.
func number(r slog.Record, key string) (n int64) {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == key && a.Value.Kind() == slog.KindInt64 {
			n = a.Value.Int64()
		}
		return true
	})
	return n
}

// WithAttrs implements slog.Handler.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *h
	for _, a := range attrs {
		if a.Key != "Key" {
			continue
		}
		if peer, err := netip.ParseAddr(a.Value.String()); err == nil {
			next.peer = peer
		}
	}
	return &next
}

// WithGroup implements slog.Handler.
func (h *logHandler) WithGroup(string) slog.Handler { return h }
