// The theme gives its search the role of a dialog, and no name.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
