// The token is behind the #, so that it is in no server's log, and it leaves the address bar at once.
const token = new URLSearchParams(location.hash.slice(1)).get("bootstrap");
history.replaceState(null, "", location.pathname);
const $ = id => document.getElementById(id);
const say = (text, bad) => { $("said").textContent = text; $("said").className = bad ? "bad" : ""; };
if (token) {
  $("running").hidden = true;
  $("setup").hidden = false;
  const key = Array.from(crypto.getRandomValues(new Uint8Array(16)), b => b.toString(16).padStart(2, "0")).join("");
  $("setup").addEventListener("submit", async event => {
    event.preventDefault();
    const button = event.target.querySelector("button");
    button.disabled = true;
    say("One moment…");
    const body = { token, handle: $("handle").value, display_name: $("display_name").value.trim(), password: $("password").value };
    try {
      const response = await fetch("/v1/bootstrap", {
        method: "POST",
        headers: { "Content-Type": "application/json", "Idempotency-Key": key },
        body: JSON.stringify(body),
      });
      const answer = await response.json();
      if (!response.ok) throw new Error(answer.detail + (answer.fix ? ": " + answer.fix : ""));
      $("setup").hidden = true;
      $("next").hidden = false;
      say("Welcome, " + answer.display_name + ". You can log in as " + answer.handle + ".");
      // The console goes on with what is missing. A browser that gets no session here logs in there.
      const login = await fetch("/v1/sessions", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ handle: body.handle, password: body.password }),
      });
      if (login.ok) location.assign("/welcome");
    } catch (error) {
      say(error.message, true);
      button.disabled = false;
    }
  });
}
